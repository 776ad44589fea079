"""
empty on <["dp"=2, "tp"=2]>: one training step, as planned by shardwright 0.1.0.

Run it on 4 ranks: torchrun --nproc-per-node 4 <this file>
"""

import torch

from shardwright import runtime as rt

aten = torch.ops.aten

MESH = rt.Mesh.of(dp=2, tp=2)

PLAN = rt.Plan(
    name="empty",
    mesh=MESH,
    step_spec=None,
    versions={"shardwright": "0.1.0", "torch": "2.13.0"},
    inputs=(
        rt.Value(
            role="batch", name="x", shape=(5, 4), dtype="float32",
            sharding='[{"dp"}, {}], offsets={0: [0, 5, 5]}',
        ),
        rt.Value(
            role="param", name="w", shape=(4, 3), dtype="float32",
            sharding='[{"tp"}, {}], offsets={0: [0, 0, 4]}',
        ),
        rt.Value(role="param", name="b", shape=(3,), dtype="float32", sharding="[{}]"),
    ),
    outputs=(
        rt.Result(role="loss", dtype="float32"),
        rt.Result(role="grad", name="b", shape=(5,), dtype="float32", sharding="[{}]"),
        rt.Result(role="grad", name="i", shape=(4,), dtype="int64", sharding="[{}]"),
    ),
    groups=(("tp",), ("dp",)),
    optimizer=None,
)

# What differs between ranks: an entry per rank.
SIZES = {"h.empty": ((5, 3), (5, 3), (0, 3), (0, 3))}


def step(comm, x, w, b):
    n = comm.rank
    p = comm.partial(b, axes=("tp",))
    s = comm.slice(x, dim=1, axes=("tp",), sizes=(0, 4)).contiguous()
    h = (
        aten.addmm.default(p, s, w, beta=2.0)
        if n not in (0, 2, 3)
        else torch.add(
            torch.full(SIZES["h.empty"][n], 0.0, dtype=torch.float32, device=comm.device), p.reshape((1, 3)),
            alpha=2.0,
        )
    )
    h = comm.all_reduce(h, axes=("tp",), donate=True)
    r = aten.relu.default(h)
    t = aten.t.default(r)
    v, _ = (
        aten.max.dim(t, 0)
        if n not in (2, 3)
        else (
            torch.full((0,), 0.0, dtype=torch.float32, device=comm.device),
            torch.full((0,), 0.0, dtype=torch.int64, device=comm.device),
        )
    )
    all_ = comm.all_gather(v, dim=0, axes=("dp",), sizes=(5, 0))
    m = (
        aten.amax.default(x, (0,))
        if n not in (2, 3)
        else torch.full((4,), float("-inf"), dtype=torch.float32, device=comm.device)
    )
    m = comm.all_reduce(m, axes=("dp",), reduction="max", donate=True)
    k = aten._to_copy.default(x, dtype=torch.int64)
    low = (
        aten.amin.default(k, (0,))
        if n not in (2, 3)
        else torch.full((4,), 9223372036854775807, dtype=torch.int64, device=comm.device)
    )
    low = comm.all_reduce(low, axes=("dp",), reduction="min", donate=True)
    loss = aten.sum.default(m)

    return loss, all_, low


if __name__ == "__main__":
    rt.main(PLAN, step)
