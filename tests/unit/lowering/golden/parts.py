"""
parts on <["t"=2 temporal, "dp"=2]>: one training step, as planned by shardwright 0.1.0.

Run it on 2 ranks: torchrun --nproc-per-node 2 <this file>
"""

import torch

from shardwright import runtime as rt

aten = torch.ops.aten

MESH = rt.Mesh.of(dp=2)

PLAN = rt.Plan(
    name="parts",
    mesh=MESH,
    step_spec=None,
    versions={"shardwright": "0.1.0", "torch": "2.13.0"},
    inputs=(
        rt.Value(role="batch", name="x", shape=(5, 3), dtype="float32", sharding='[{}, {"dp"}]'),
        rt.Value(role="param", name="w", shape=(1, 3), dtype="float32", sharding='[{}, {"dp"}]'),
    ),
    outputs=(
        rt.Result(role="loss", dtype="float32"),
        rt.Result(role="grad", name="sum", shape=(3,), dtype="float32", sharding='[{"dp"}]'),
        rt.Result(role="grad", name="view", shape=(3, 1), dtype="float32", sharding='[{"dp"}, {}]'),
        rt.Result(role="grad", name="repeated", shape=(2, 3), dtype="float32", sharding='[{}, {"dp"}]'),
        rt.Result(role="grad", name="max", shape=(3,), dtype="float32", sharding='[{"dp"}]'),
        rt.Result(role="grad", name="all", shape=(5, 3), dtype="float32", sharding="[{}, {}]"),
    ),
    groups=(("dp",),),
    optimizer=None,
)

# What differs between ranks: an entry per rank.
SIZES = {
    "sums_1": (((5, 1), (0, 1)), ((5, 2), (0, 2))),
    "g.empty": (((1,), (1,)), ((1,), (2,))),
    "g_1": ((1, 1), (2, 1)),
    "r": ((2, 1), (2, 2)),
}


def micro(comm, part, sums, x, e):
    n = comm.rank
    part_1 = rt.part_of(x, 0, part, (5, 0))
    sums_1 = aten.expand.default(e, SIZES["sums_1"][n][part])
    h = aten.mul.Tensor(part_1, sums_1)
    s = (
        aten.sum.default(h)
        if (n, part) not in ((0, 1), (1, 1))
        else torch.full((), 0.0, dtype=torch.float32, device=comm.device)
    )
    sums.add(s)
    del s
    g = (
        aten.sum.dim_IntList(h, (0,))
        if (n, part) not in ((0, 1), (1, 1))
        else torch.full(SIZES["g.empty"][n][part], 0.0, dtype=torch.float32, device=comm.device)
    )
    g_1 = aten.reshape.default(g, SIZES["g_1"][n])
    sums.add(g_1.clone())
    del g_1
    k = aten.neg.default(g)
    r = aten.expand.default(k, SIZES["r"][n])
    sums.add(r.clone())
    del r
    m = (
        aten.amax.default(h, (0,))
        if (n, part) not in ((0, 1), (1, 1))
        else torch.full(SIZES["g.empty"][n][part], float("-inf"), dtype=torch.float32, device=comm.device)
    )
    sums.add(m, how="max")
    del m
    whole = comm.all_gather(h, dim=1, axes=("dp",), sizes=(1, 2))
    sums.add(whole, how="list")
    del whole
    sums.add(g.clone())


def step(comm, x, w):
    e = aten.exp.default(w)

    # 2 parts of the batch, one after the other
    sums = rt.Sums()
    for part in range(2):
        micro(comm, part, sums.next_part(), x, e)
    f, f_1, f_2, f_3, f_4, f_5 = sums.totals()
    del sums
    loss = comm.all_reduce(f, axes=("dp",), donate=True)
    f_4 = torch.cat(f_4, 0)

    return loss, f_5, f_1, f_2, f_3, f_4


if __name__ == "__main__":
    rt.main(PLAN, step)
