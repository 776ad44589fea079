"""
stages in 2 stages on <["micro"=2 temporal, "gpu"=1]> and <["micro"=2 temporal, "gpu"=2]>: one training step,
as planned by shardwright 0.1.0.

Run it on 3 ranks: torchrun --nproc-per-node 3 <this file>
"""

import torch

from shardwright import runtime as rt

aten = torch.ops.aten

MESH0 = rt.Mesh.of(gpu=1)
TIMED0 = MESH0.over(micro=2)
MESH1 = rt.Mesh.of(gpu=2)
TIMED1 = MESH1.over(micro=2)

TRANSFERS = (
    rt.Transfer(
        label="tied", shape=(3, 3), dtype="float32", source=rt.Holders(TIMED0, (0,)),
        target=rt.Holders(TIMED1, (1, 2)), tasks=(rt.Task(0, ((0, 3), (0, 3)), 0, (1, 2)),),
    ),
    rt.Transfer(
        label="h", shape=(4, 3), dtype="float32", source=rt.Holders(TIMED0, (0,), '[{"micro"}, {}]'),
        target=rt.Holders(TIMED1, (1, 2), '[{"micro"}, {}]'),
        tasks=(rt.Task(0, ((0, 2), (0, 3)), 0, (1, 2)), rt.Task(1, ((2, 4), (0, 3)), 0, (2, 1))),
    ),
    rt.Transfer(
        label="g",
        shape=(4, 3),
        dtype="float32",
        source=rt.Holders(TIMED1, (1, 2), '[{"micro", "gpu"}, {}]'),
        target=rt.Holders(TIMED0, (0,), '[{"micro"}, {}]'),
        tasks=rt.in_each_part(
            2, (2, 0), (rt.Task(0, ((0, 1), (0, 3)), 1, (0,)), rt.Task(0, ((1, 2), (0, 3)), 2, (0,))),
        ),
    ),
    rt.Transfer(
        label="loss", shape=(), dtype="float32", source=rt.Holders(TIMED1, (1, 2)),
        target=rt.Holders(TIMED0, (0,)), tasks=(rt.Task(0, (), 1, (0,)),),
    ),
)

PLAN0 = rt.Plan(
    name="stages",
    mesh=MESH0,
    step_spec=None,
    versions={"shardwright": "0.1.0", "torch": "2.13.0"},
    inputs=(
        rt.Value(role="param", name="first.weight", shape=(3, 3), dtype="float32", sharding="[{}, {}]"),
        rt.Value(role="batch", name="x", shape=(4, 3), dtype="float32", sharding="[{}, {}]"),
    ),
    outputs=(
        rt.Result(role="loss", dtype="float32"),
        rt.Result(role="grad", name="first.weight", shape=(3, 3), dtype="float32", sharding="[{}, {}]"),
    ),
    groups=(),
    optimizer=None,
    ranks=(0,),
    transfers=TRANSFERS,
)

PLAN1 = rt.Plan(
    name="stages",
    mesh=MESH1,
    step_spec=None,
    versions={"shardwright": "0.1.0", "torch": "2.13.0"},
    inputs=(
        rt.Value(role="param", name="last.weight", shape=(3, 3), dtype="float32", sharding='[{}, {"gpu"}]'),
    ),
    outputs=(
        rt.Result(role="loss", dtype="float32"),
        rt.Result(role="grad", name="last.weight", shape=(3, 3), dtype="float32", sharding='[{}, {"gpu"}]'),
    ),
    groups=(("gpu",),),
    optimizer=None,
    ranks=(1, 2),
    transfers=TRANSFERS,
)


def forward0(comm, part, x, v):
    x = rt.part_of(x, 0, part, 2)
    h_in = aten.mm.default(x, v)

    return x, h_in


def weights0(comm, part, sums, x_part, g_at0):
    xt = aten.t.default(x_part)
    gv = aten.mm.default(xt, g_at0)
    sums.add(gv)
    del gv


def forward1(comm, part, sums, h_at1, e, w):
    m = aten.mm.default(h_at1, e)
    z = aten.mm.default(m, w)
    s = aten.sum.default(z)
    sums.add(s)
    del s

    return z,


def backward1(comm, part, sums, h_at1, y, w):
    t = aten.t.default(h_at1)
    gw = aten.mm.default(t, y)
    sums.add(gw)
    del gw
    wt = aten.t.default(w)
    gh = aten.mm.default(y, wt)
    gr = comm.reduce_scatter(gh, dim=0, axes=("gpu",))

    return gr,


def step0(comm, v, x):
    comm.send("tied", 0, v)

    # The parts of the batch, as the schedule has them.
    g_at0_0 = comm.receive("g", 0)
    x_part_0, h_0 = forward0(comm, 0, x, v)
    comm.send("h", 0, h_0)
    del h_0
    x_part_1, h_1 = forward0(comm, 1, x, v)
    comm.send("h", 1, h_1)
    del h_1
    g_at0_0 = comm.arrived(g_at0_0)
    weights0_sums = rt.Sums()
    weights0(comm, 0, weights0_sums.next_part(), x_part_0, g_at0_0)
    del g_at0_0, x_part_0
    g_at0_1 = comm.receive("g", 1)
    g_at0_1 = comm.arrived(g_at0_1)
    weights0(comm, 1, weights0_sums.next_part(), x_part_1, g_at0_1)
    del g_at0_1, x_part_1
    (g_v,) = weights0_sums.totals()
    del weights0_sums
    loss_at0 = comm.arrived(comm.receive("loss", 0))

    return loss_at0, g_v


def step1(comm, w):
    tied = comm.arrived(comm.receive("tied", 0))
    e = aten.exp.default(tied)
    del tied

    # The parts of the batch, as the schedule has them.
    h_at1_0 = comm.receive("h", 0)
    h_at1_1 = comm.receive("h", 1)
    h_at1_0 = comm.arrived(h_at1_0)
    forward1_sums = rt.Sums()
    (y_0,) = forward1(comm, 0, forward1_sums.next_part(), h_at1_0, e, w)
    backward1_sums = rt.Sums()
    (g_0,) = backward1(comm, 0, backward1_sums.next_part(), h_at1_0, y_0, w)
    del h_at1_0, y_0
    comm.send("g", 0, g_0)
    del g_0
    h_at1_1 = comm.arrived(h_at1_1)
    (y_1,) = forward1(comm, 1, forward1_sums.next_part(), h_at1_1, e, w)
    del e
    (g_1,) = backward1(comm, 1, backward1_sums.next_part(), h_at1_1, y_1, w)
    del h_at1_1, y_1
    comm.send("g", 1, g_1)
    del g_1
    (loss,) = forward1_sums.totals()
    del forward1_sums
    (g_w,) = backward1_sums.totals()
    del backward1_sums
    loss_all = comm.all_reduce(loss, axes=("gpu",), donate=True)
    del loss
    comm.send("loss", 0, loss_all)

    return loss_all, g_w


STAGES = (rt.Stage(PLAN0, step0), rt.Stage(PLAN1, step1))

if __name__ == "__main__":
    rt.launch(STAGES)
