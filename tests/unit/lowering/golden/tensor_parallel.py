"""
tensor_parallel on <["dp"=2, "tp"=2]>: one training step, as planned by shardwright 0.1.0.

Run it on 4 ranks: torchrun --nproc-per-node 4 <this file>
"""

import torch

from shardwright import runtime as rt

aten = torch.ops.aten

MESH = rt.Mesh.of(dp=2, tp=2)

PLAN = rt.Plan(
    name="tensor_parallel",
    mesh=MESH,
    step_spec=None,
    versions={"shardwright": "0.1.0", "torch": "2.13.0"},
    inputs=(
        rt.Value(role="param", name="fc1.weight", shape=(8, 6), dtype="float32", sharding='[{"tp"}, {}]'),
        rt.Value(role="batch", name="0", shape=(4, 6), dtype="float32", sharding='[{"dp"}, {}]'),
        rt.Value(role="step_count", shape=(), dtype="float32", sharding="[]"),
        rt.Value(role="learning_rate", shape=(), dtype="float32", sharding="[]"),
    ),
    outputs=(
        rt.Result(role="loss", dtype="float32"),
        rt.Result(role="param", updates=0),
        rt.Result(role="step_count", updates=2),
    ),
    groups=(("dp", "tp"), ("dp",)),
    optimizer={"kind": "sgd", "lr": 0.1},
)


def step(comm, fc1_weight, x, step_count, lr):
    # model, update
    step_count_new = rt.increment(step_count)

    # fc1  (models/mlp.py:12)
    t = aten.t.default(fc1_weight)
    h = aten.mm.default(x, t)

    # loss  (models/mlp.py:13)
    loss = aten.sum.default(h)
    del h
    loss = comm.all_reduce(loss, axes=("dp", "tp"), donate=True)
    ones = aten.ones.default((2, 4), device=comm.device)
    ones_t = aten.t.default(ones)

    # fc1  (models/mlp.py:12)
    g = aten.mm.default(ones_t, x)
    token = comm.start("all_reduce", (g,), axes=("dp",), donate=True)
    (g,) = comm.wait(token)
    del token

    # model, update
    fc1_weight = rt.sgd_(fc1_weight, g, None, step_count_new, lr, momentum=0.0, weight_decay=0.01)

    return loss, fc1_weight, step_count_new


if __name__ == "__main__":
    rt.main(PLAN, step)
