"""
uneven on <["dp"=2, "tp"=2]>: one training step, as planned by shardwright 0.1.0.

Run it on 4 ranks: torchrun --nproc-per-node 4 <this file>
"""

import torch

from shardwright import runtime as rt

aten = torch.ops.aten

MESH = rt.Mesh.of(dp=2, tp=2)

PLAN = rt.Plan(
    name="uneven",
    mesh=MESH,
    step_spec=None,
    versions={"shardwright": "0.1.0", "torch": "2.13.0"},
    inputs=(
        rt.Value(role="param", name="table", shape=(7, 5), dtype="float32", sharding='[{"dp"}, {}]'),
        rt.Value(role="batch", name="x", shape=(7, 6), dtype="float32", sharding='[{"dp"}, {}]'),
    ),
    outputs=(
        rt.Result(role="loss", dtype="float32"),
        rt.Result(role="grad", name="table", shape=(7, 5), dtype="float32", sharding='[{"dp"}, {}]'),
        rt.Result(role="grad", name="x", shape=(6, 7), dtype="float32", sharding="[{}, {}]"),
    ),
    groups=(("dp",), ("tp",)),
    optimizer=None,
)

# What differs between ranks: an entry per rank.
SIZES = {
    "wide": ((3, 2, 3), (3, 2, 3), (4, 2, 3), (4, 2, 3)),
    "narrow": ((3, 6), (3, 6), (4, 6), (4, 6)),
    "inner.sizes": ((1, 2), (1, 2), (2, 2), (2, 2)),
}


def step(comm, table, x):
    n = comm.rank
    wide = aten.reshape.default(x, SIZES["wide"][n])
    again = aten.reshape.default(x, SIZES["wide"][n])
    both = aten.mul.Tensor(wide, again)
    narrow = aten.reshape.default(both, SIZES["narrow"][n])
    whole = comm.all_gather(narrow, dim=0, axes=("dp",), sizes=(3, 4))
    moved = comm.all_to_all(narrow, split_dim=1, concat_dim=0, axes=("dp",), concat_sizes=(3, 4))
    back = comm.all_gather(moved, dim=1, axes=("dp",))
    part = comm.slice(back, dim=0, axes=("dp",), sizes=(2, 5))
    even = comm.slice(whole, dim=0, axes=("dp", "tp"))
    inner = comm.all_gather(even, dim=0, axes=("tp",), sizes=SIZES["inner.sizes"][n])
    restored = comm.all_gather(inner, dim=0, axes=("dp",), sizes=(3, 4))
    t = aten.t.default(restored)
    apart = comm.all_gather(part, dim=0, axes=("dp",), sizes=(2, 5))
    split = comm.partial(apart, axes=("tp",))
    mine = comm.reduce_scatter(split, dim=0, axes=("tp",), sizes=(1, 6))
    total = aten.sum.default(mine)
    loss = comm.all_reduce(total, axes=("tp",), donate=True)

    return loss, table, t


if __name__ == "__main__":
    rt.main(PLAN, step)
