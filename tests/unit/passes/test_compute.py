"""Costs of ops on a cluster: by signature, rank and cost back end, and as linear functions of shares."""

from dataclasses import replace

import pytest
from _back_ends import restricted
from ir_files import context, parse
from xdsl.dialects.func import FuncOp

from shardwright.dialects.compute import ComputeOp
from shardwright.ir.cluster import Cluster
from shardwright.ir.op_rate import OpRate
from shardwright.ir.ratios import EVEN
from shardwright.passes.analysis.compute import op_seconds, op_work, rank_seconds
from shardwright.passes.shares.phases import Computation, PhaseModel
from shardwright.passes.step.step_view import cluster_of_module

# A product of 64x32 and 32x16 takes 65,536 operations, 65.536 s on one device.
HEAD = """
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @c on @mesh
  devices [#spmd.device<"a", flops = {float32 = 1.0e3}, bandwidth = 1.0e6, memory = 1.0e9, launch = 0.5>]
  placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0, beta = 1.0e-3>]
"""
PRODUCT = "(tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>"
ROWS = '#spmd.sig<@mesh, ([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>'
THIRD = "offsets={0: [0, 16, 64]}"
UNEVEN = f'#spmd.sig<@mesh, ([{{"gpu"}}, {{}}], {THIRD}, [{{}}, {{}}]) -> ([{{"gpu"}}, {{}}], {THIRD})>'
KEY = "mm(float32[32x32], float32[32x16])"


def product(signature: str = ROWS) -> tuple[ComputeOp, Cluster]:
    """Return the product of `%x` and `%w` with a signature, and the cluster."""
    body = f"%y = aten.mm %x, %w {{spmd.signature = {signature}}} : {PRODUCT}"
    head = "func.func @f(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>)"
    module = parse("\n".join([HEAD, f"{head} {{", body, "func.return", "}"]), context())
    func = next(op for op in module.ops if isinstance(op, FuncOp))
    return next(op for op in func.body.block.ops if isinstance(op, ComputeOp)), cluster_of_module(module)


def profiled(cluster: Cluster) -> Cluster:
    """Return the cluster with a fitted rate and a measured time."""
    rate = OpRate("contractions", "float32", 2e3, 1e6, 0.0, ((1e3, 0.25), (32768.0, 0.5), (1e6, 1.0)))
    devices = tuple(replace(device, rates=(rate,), table=((KEY, 7.0),)) for device in cluster.devices)
    return replace(cluster, devices=devices)


def test_back_ends_use_table_then_rate_then_roofline():
    op, cluster = product()
    assert op.signature is not None
    assert op_work(op, op.signature, cluster.mesh).key == KEY
    profile = profiled(cluster)
    found = [op_seconds(op, op.signature, restricted(profile, each)) for each in ("analytic", "fitted", "table")]
    assert found == pytest.approx([32.768 + 0.5, 16.384 / 0.5, 7.0])


def test_each_rank_takes_the_time_of_its_part_and_the_op_takes_the_slowest():
    op, cluster = product(UNEVEN)
    assert op.signature is not None
    assert rank_seconds(op, op.signature, cluster) == pytest.approx([16.384 + 0.5, 49.152 + 0.5])
    assert op_seconds(op, op.signature, cluster) == pytest.approx(49.152 + 0.5)
    assert op_work(op, op.signature, cluster.mesh, 0).key == "mm(float32[16x32], float32[32x16])"


@pytest.mark.parametrize("back_end", ["analytic", "fitted", "table"])
def test_a_phase_is_a_line_that_touches_the_time_at_the_even_share(back_end: str):
    op, cluster = product()
    assert op.signature is not None
    cluster = restricted(profiled(cluster), back_end)  # pyright: ignore[reportArgumentType]
    (phase,) = PhaseModel((Computation(op, op.signature, 0),), cluster).phases("gpu", {0: EVEN})
    assert phase.seconds((0.5, 0.5)) == pytest.approx(op_seconds(op, op.signature, cluster))
    assert phase.seconds((0.25, 0.75)) > phase.seconds((0.5, 0.5))


def test_a_rising_curve_makes_the_line_flatter():
    op, cluster = product()
    assert op.signature is not None
    lines = [
        PhaseModel((Computation(op, op.signature, 0),), each).phases("gpu", {0: EVEN})[0]
        for each in (cluster, restricted(profiled(cluster), "fitted"))
    ]
    growth = [line.seconds((0.25, 0.75)) / line.seconds((0.5, 0.5)) for line in lines]
    assert growth[0] == pytest.approx((49.152 + 0.5) / (32.768 + 0.5))
    assert 1.0 < growth[1] < growth[0]
