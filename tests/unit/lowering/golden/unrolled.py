"""
unrolled on <["t"=2 temporal, "dp"=2]>: one training step, as planned by shardwright 0.1.0.

Run it on 2 ranks: torchrun --nproc-per-node 2 <this file>
"""

import torch

from shardwright import runtime as rt

aten = torch.ops.aten

MESH = rt.Mesh.of(dp=2)

PLAN = rt.Plan(
    name="unrolled",
    mesh=MESH,
    step_spec=None,
    versions={"shardwright": "0.1.0", "torch": "2.13.0"},
    inputs=(
        rt.Value(role="batch", name="x", shape=(7, 3), dtype="float32", sharding="[{}, {}]"),
        rt.Value(role="param", name="w", shape=(3,), dtype="float32", sharding="[{}]"),
    ),
    outputs=(
        rt.Result(role="loss", dtype="float32"),
        rt.Result(role="grad", name="max", shape=(3,), dtype="float32", sharding="[{}]"),
        rt.Result(role="grad", name="view", shape=(3,), dtype="float32", sharding="[{}]"),
    ),
    groups=(),
    optimizer=None,
)


def step(comm, x, w):
    x_a = rt.part_of(x, 0, 0, 2)
    x_b = rt.part_of(x, 0, 1, 2)
    v_a = aten.reshape.default(x_a, (9,))
    v_b = aten.reshape.default(x_b, (12,))
    s_a = aten.sum.default(v_a)
    s_b = aten.sum.default(v_b)
    loss = s_a.add_(s_b)
    m_a = aten.amax.default(x_a, (0,))
    m_b = aten.amax.default(x_b, (0,))
    m = torch.maximum(m_a, m_b)
    g_a = aten.sum.dim_IntList(x_a, (0,))
    g_b = aten.sum.dim_IntList(x_b, (0,))
    g = g_a.add_(g_b)

    return loss, m, g


if __name__ == "__main__":
    rt.main(PLAN, step)
