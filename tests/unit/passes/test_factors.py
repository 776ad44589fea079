"""Dims that are split together share boundaries, and splits stay even if sizes divide."""

from ir_files import context, parse

from shardwright.dialects.ratios import ratios_of
from shardwright.dialects.text import module_text
from shardwright.ir.mesh import Mesh
from shardwright.ir.ratios import EVEN, Ratios
from shardwright.ir.signatures import signatures
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.factors import Factors
from shardwright.passes.step.step_view import StepView, step_functions

MESH = Mesh.of(gpu=4)
HEAD = """
#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e6}, bandwidth = 1.0e6, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-9, beta = 1.0e-9>
spmd.mesh @mesh = <["gpu"=4]>
spmd.cluster @four on @mesh devices [#cpu] placement [0, 0, 0, 0] links [#link]
"""


def chain(rows: int, columns: int) -> str:
    """Return a step that flattens a matrix, applies an op, and restores the shape."""
    flat = rows * columns
    return (
        HEAD
        + f"""
func.func @step(%x: tensor<{rows}x{columns}xf32> {{train.batch = "0"}}) -> tensor<{rows}x{columns}xf32> {{
  %flat = aten.view %x {{size = [{flat} : i64]}} : (tensor<{rows}x{columns}xf32>) -> tensor<{flat}xf32>
  %y = aten.exp %flat : (tensor<{flat}xf32>) -> tensor<{flat}xf32>
  %z = aten.view %y {{size = [{rows} : i64, {columns} : i64]}} : (tensor<{flat}xf32>) -> tensor<{rows}x{columns}xf32>
  func.return %z : tensor<{rows}x{columns}xf32>
}}"""
    )


def test_a_product_of_factors_is_split_at_its_leading_factor():
    (func,) = step_functions(parse(chain(6, 7), context()))
    factors = Factors(StepView(func, MESH), {0: EVEN})
    by_name = {op.outs[0].name_hint: factors.of_value(op.outs[0]) for op in StepView(func, MESH).ops}
    assert (by_name["flat"].sizes, by_name["flat"].counts) == ((42,), (6,))
    assert by_name["y"].dim(0, ("gpu",), MESH).offsets == (0, 7, 21, 28, 42)
    assert by_name["z"].counts == (6, 7)


def test_divisible_dims_are_split_evenly():
    (func,) = step_functions(parse(chain(8, 7), context()))
    view = StepView(func, MESH)
    factors = Factors(view, {0: EVEN})
    assert all(factors.of_op(op).is_even(MESH) for op in view.ops)
    for op in view.ops:
        assert signatures(op.rule(), MESH, factors.of_op(op)) == signatures(op.rule(), MESH)


def test_flattening_a_split_matrix_needs_no_communication():
    """Rounding 6 and 42 separately would move boundaries twice."""
    module = parse(chain(6, 7), context())
    run_pipeline(context(), module, "search-strategy,insert-resharding")
    text = module_text(module)
    assert "offsets={0: [0, 7, 21, 28, 42]}" in text
    assert "spmd.reshard" not in text


def test_segments_have_their_own_ratios():
    (func,) = step_functions(parse(chain(8, 2), context()))
    view = StepView(func, MESH)
    skewed = Ratios.of({"gpu": [0.5, 0.5, 0.0, 0.0]})
    factors = Factors(view, {0: EVEN, 1: skewed})
    assert ratios_of(func, MESH) == {0: EVEN}
    assert factors.ratios_of(1) == skewed
    assert factors.ratios_of(7) == EVEN
