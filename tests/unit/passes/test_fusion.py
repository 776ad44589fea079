"""Fused kernels of compiled computation: their ops, and the counted bytes and launches."""

import pytest
from ir_files import context, parse
from launches import names_of
from split_cluster import split_cluster
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.dialects.compute import ComputeOp
from shardwright.dialects.step import COMPILED
from shardwright.ir.mesh import Mesh, parse_mesh
from shardwright.ir.op_cost import op_seconds
from shardwright.models.registry import training_step
from shardwright.passes.analysis.compute import op_work
from shardwright.passes.analysis.fusion import fused_parts, fuses, least_parts
from shardwright.passes.analysis.simulation.timeline import predict
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import cluster_of_module, step_functions

CHAIN = """
spmd.mesh @mesh = <["gpu"=2]>
func.func @step(%x: tensor<8x4xf32> {train.batch = "x"}, %w: tensor<4x4xf32> {train.param = "w"})
    -> (tensor<8x4xf32>, tensor<8x4xf32>) attributes {train.compiled} {
  %a = aten.mul.Tensor %x, %x : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %b = aten.relu %a : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %t = aten.t %b : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %u = aten.t %t : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %c = aten.add.Tensor %u, %x : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %y = aten.mm %c, %w : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %d = aten.relu %y : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %e = aten.add.Tensor %d, %a : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %e, %c : tensor<8x4xf32>, tensor<8x4xf32>
}
"""
"""Two kernels around a product: %a, %b, %c and %d, %e; views do not end a kernel."""


def named(module: ModuleOp) -> dict[str, Operation]:
    """Return the ops by the names of their first results."""
    (func,) = step_functions(module)
    return {name: op for op in func.body.block.ops if op.results and (name := op.results[0].name_hint) is not None}


def test_a_chain_is_a_kernel_that_reads_and_writes_once():
    module = parse(CHAIN, context())
    ops, parts = named(module), fused_parts(step_functions(module)[0])
    found = {name: (sorted(parts[op].moved), parts[op].launches) for name, op in ops.items() if op in parts}
    # Positions: operands, then results. %x is read once, %a is written for the second kernel, %b is not written, %c is
    # returned, and %e reads %a from the other kernel.
    assert found == {
        "a": ([0, 2], True),
        "b": ([], False),
        "c": ([2], False),
        "d": ([0], True),
        "e": ([1, 2], False),
    }


def test_a_function_that_is_not_compiled_has_no_fused_kernels():
    module = parse(CHAIN.replace(" attributes {train.compiled}", ""), context())
    (func,) = step_functions(module)
    assert fused_parts(func) == {}
    assert least_parts(func) == {}


BETWEEN = """
spmd.mesh @mesh = <["gpu"=2]>
func.func @step(%x: tensor<8x4xf32> {train.batch = "x", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>})
    -> tensor<8x4xf32> attributes {train.compiled} {
  %a = aten.mul.Tensor %x, %x {
    spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{"gpu"}, {}]) -> ([{"gpu"}, {}])>
  } : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %b = aten.relu %a {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
    : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %c = aten.neg %b {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
    : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %whole = spmd.all_gather [{"gpu"}, {}] %c out_sharding = <@mesh, [{}, {}]> : tensor<8x4xf32>
  %d = aten.relu %whole {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>}
    : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %e = aten.neg %d {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([{}, {}])>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %e : tensor<8x4xf32>
}
"""


def test_a_collective_ends_a_kernel():
    module = parse(BETWEEN, context())
    ops, parts = named(module), fused_parts(step_functions(module)[0])
    assert [name for name, op in ops.items() if op in parts and parts[op].launches] == ["a", "d"]
    assert sorted(parts[ops["c"]].moved) == [1]
    assert sorted(parts[ops["d"]].moved) == [0]


def test_a_kernel_costs_its_bytes_and_one_launch():
    cluster = split_cluster(Mesh.of(gpu=2))
    (device,) = cluster.kinds_used
    module = parse(BETWEEN, context())
    parts = fused_parts(step_functions(module)[0])
    seconds = 0.0
    for op in named(module).values():
        if op in parts and isinstance(op, ComputeOp) and op.signature is not None:
            seconds += op_seconds(device, op_work(op, op.signature, cluster.mesh, part=parts[op]))
    # Read and write the part of a rank, then read and write the full value.
    moved = 2 * 4 * 16 + 2 * 4 * 32
    assert seconds == pytest.approx(2 * device.launch + moved / device.memory_bandwidth, rel=0.3)
    run_pipeline(context(), module, "overlap")
    assert predict(step_functions(module)[0], cluster).compute_seconds == pytest.approx(seconds, rel=0.1)


CASES = [("gpt2-tiny", "dp"), ("gpt2-tiny", "tp"), ("unet-tiny", "zero3")]


# Data parallelism has the fewest forms of ops, all of which the other plans have as well.
@pytest.mark.parametrize(("model", "pins"), names_of(CASES, lambda case: case != ("gpt2-tiny", "dp")))
def test_the_least_parts_are_a_lower_bound_for_every_op(model: str, pins: str):
    cluster = split_cluster(parse_mesh("dp=2,tp=2"))
    step = training_step(model)
    made = compile_step(step, cluster, PlanOptions("fixed", pins, compile=True))
    plain = compile_step(step, cluster, PlanOptions("fixed", pins))
    (func,) = step_functions(made.module)
    assert COMPILED in func.attributes
    assert made.report["predicted_compute_s"] < plain.report["predicted_compute_s"]
    fused, least = fused_parts(func), least_parts(func)
    assert set(least) == {op for op in func.body.block.ops if fuses(op)}
    assert any(part.moved for part in least.values())
    for op, part in least.items():
        assert op not in fused or part.moved <= fused[op].moved
    # Without the mark the program has its old cost.
    del func.attributes[COMPILED]
    found = predict(func, cluster_of_module(made.module)).compute_seconds
    assert found == pytest.approx(plain.report["predicted_compute_s"], rel=0.05)


def test_the_mark_is_verified():
    module = parse(CHAIN, context())
    (func,) = step_functions(module)
    func.attributes[COMPILED] = IntegerAttr(3, 64)
    with pytest.raises(VerifyException, match=r"train\.compiled"):
        module.verify()
