"""
updates on <["dp"=2]>: one training step, as planned by shardwright 0.1.0.

Run it on 2 ranks: torchrun --nproc-per-node 2 <this file>
"""

import torch

from shardwright import runtime as rt

aten = torch.ops.aten

MESH = rt.Mesh.of(dp=2)

PLAN = rt.Plan(
    name="updates",
    mesh=MESH,
    step_spec=None,
    versions={"shardwright": "0.1.0", "torch": "2.13.0"},
    inputs=(
        rt.Value(role="param", name="w", shape=(4,), dtype="float32", sharding="[{}]", tied=("head.w",)),
        rt.Value(role="state", name="w", state="exp_avg", shape=(4,), dtype="float32", sharding="[{}]"),
        rt.Value(role="state", name="w", state="exp_avg_sq", shape=(4,), dtype="float32", sharding="[{}]"),
        rt.Value(role="buffer", name="norm.mean", shape=(4,), dtype="float32", sharding="[{}]"),
        rt.Value(
            role="constant", name="mask", shape=(2, 2), dtype="bool", sharding="[{}, {}]",
            value=(True, False, True, True),
        ),
        rt.Value(
            role="constant", name="zeros", shape=(4,), dtype="float32", sharding="[{}]", value=(0.0,) * 4,
        ),
        rt.Value(role="batch", name="0", shape=(6, 4), dtype="float32", sharding='[{"dp"}, {}]'),
        rt.Value(role="step_count", shape=(), dtype="float32", sharding="[]"),
        rt.Value(role="learning_rate", shape=(), dtype="float32", sharding="[]"),
    ),
    outputs=(
        rt.Result(role="loss", dtype="float32"),
        rt.Result(role="param", updates=0),
        rt.Result(role="state", updates=1),
        rt.Result(role="state", updates=2),
        rt.Result(role="buffer", updates=3),
        rt.Result(role="step_count", updates=7),
        rt.Result(role="grad", name="w", shape=(4,), dtype="float32", sharding="[{}]"),
    ),
    groups=(("dp",),),
    optimizer={"kind": "adamw", "lr": 0.001, "eps": 1e-08},
)


def step(comm, w, m, v, mean, mask, zeros, x, step_count, lr):
    # model, update
    count = rt.increment(step_count)

    # scale  (model.py:3)
    h = aten.mul.Tensor(x, w)

    # scale  (model.py:4)
    a = aten.sum.dim_IntList(h, (0,))
    b = aten.sum.dim_IntList(x, (0,))

    # scale  (model.py:4), backward
    g = aten.add_.Tensor(a, b)
    g = comm.all_reduce(g, axes=("dp",), donate=True)
    kept = aten.add.Tensor(g, zeros)

    # norm
    mean_new = aten.add.Tensor(mean, kept)

    # model, update
    # still needed as it is: w
    w_new, m, v = rt.adamw_(w.clone(), g, m, v, count, lr, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01)
    del kept, zeros
    s = aten.sum.default(w)

    return s, w_new, m, v, mean_new, count, g


if __name__ == "__main__":
    rt.main(PLAN, step)
