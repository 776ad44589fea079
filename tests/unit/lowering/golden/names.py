"""
names on <["dp"=2]>: one training step, as planned by shardwright 0.1.0.

Run it on 2 ranks: torchrun --nproc-per-node 2 <this file>
"""

import torch

from shardwright import runtime as rt

aten = torch.ops.aten

MESH = rt.Mesh.of(dp=2)

PLAN = rt.Plan(
    name="names",
    mesh=MESH,
    step_spec=None,
    versions={"shardwright": "0.1.0", "torch": "2.13.0"},
    inputs=(
        rt.Value(role="batch", name="lambda", shape=(4, 6), dtype="float32", sharding='[{"dp"}, {}]'),
        rt.Value(
            role="batch", name="q", shape=(2, 2, 4, 8), dtype="float32", sharding='[{"dp"}, {}, {}, {}]',
        ),
        rt.Value(role="buffer", name="1.b-c", shape=(4, 6), dtype="float32", sharding='[{"dp"}, {}]'),
    ),
    outputs=(
        rt.Result(role="loss", dtype="float32"),
        rt.Result(role="grad", name="a", shape=(9,), dtype="float32", sharding="[{}]"),
        rt.Result(role="grad", name="b", shape=(4, 2), dtype="float32", sharding="[{}, {}]"),
    ),
    groups=(("dp",),),
    optimizer=None,
)


def step(comm, lambda_, q, l_):
    v0, sum_ = aten.split.Tensor(lambda_, 3, 1)
    n_ = aten.cat.default((v0, v0, sum_), 1)
    (only,) = aten.split.Tensor(n_, 9, 1)
    _, lse = rt.attention(q, q, q, None, True, None)
    mask = aten.lt.Scalar(l_, 0.0)
    MESH_ = aten.masked_fill.Scalar(lambda_, mask, float("-inf"))
    whole = comm.all_gather(MESH_, dim=0, axes=("dp",))
    v1 = aten.logcumsumexp.default(whole.contiguous(), 1)
    v2 = aten._to_copy.default(v1, dtype=torch.float64)
    v3 = aten._to_copy.default(v2, dtype=torch.float32)
    v4 = aten.amax.default(v3, (0,))
    v5 = aten.amax.default(only, (0,))
    v6 = aten.amax.default(lse, (0,))
    token = comm.start("all_reduce", (v5, v6), axes=("dp",), reduction="max", donate=True)
    v7 = aten.sum.default(v4)
    v5, v6 = comm.wait(token)
    v8 = aten.t.default(v6)

    return v7, v5, v8


if __name__ == "__main__":
    rt.main(PLAN, step)
