"""The kinds of parallelism of parameters, on products written by hand."""

import pytest
from ir_files import context, parse

from shardwright.ir.mesh import Mesh
from shardwright.ir.sharding import Reduction, Sharding
from shardwright.passes.analysis.parallelism import Parallelism, ParameterSpread, per_axis, spreads
from shardwright.passes.step.step_view import StepView, mesh_of_module, step_functions

HEAD = 'spmd.mesh @mesh = <["dp"=2, "tp"=4]>\n'


def spread(body: str, home: str, working: str, states: str = "", batch: str = "[{}, {}]") -> ParameterSpread:
    """Return the spread of the parameter `%w` of a step; `working` is a resharding of it, or the parameter itself."""
    sharded = "spmd.sharding = #spmd.sharding<@mesh, "
    state = f'%s: tensor<8x8xf32> {{train.state = ["w", "exp_avg"], {sharded}{states}>}}, ' if states else ""
    text = (
        f'{HEAD}func.func @step(%w: tensor<8x8xf32> {{train.param = "w", {sharded}{home}>}}, {state}'
        f'%x: tensor<8x8xf32> {{train.batch = "0", {sharded}{batch}>}}) -> tensor<8x8xf32> {{\n{working}{body}}}'
    )
    module = parse(text, context())
    (func,) = step_functions(module)
    (found,) = spreads(StepView(func, mesh_of_module(module)))
    return found


def product(left: str, right: str, result: str, of: str = "%w") -> str:
    signature = f"#spmd.sig<@mesh, ({left}, {right}) -> ({result})>"
    kind = "tensor<8x8xf32>"
    op = f"%y = aten.mm %x, {of} {{spmd.signature = {signature}}} : ({kind}, {kind}) -> {kind}"
    return f"{op}\nfunc.return %y : {kind}\n"


WHOLE, ROWS, COLUMNS = "[{}, {}]", '[{"dp"}, {}]', '[{}, {"tp"}]'


@pytest.mark.parametrize(
    ("left", "home", "result", "dp", "tp"),
    [
        (ROWS, WHOLE, ROWS, Parallelism.DATA, Parallelism.REPLICATED),
        (ROWS, COLUMNS, '[{"dp"}, {"tp"}]', Parallelism.DATA, Parallelism.COLUMN),
        ('[{"dp"}, {"tp"}]', '[{"tp"}, {}]', '[{"dp"}, {}], unreduced={"tp"}', Parallelism.DATA, Parallelism.ROW),
        (WHOLE, WHOLE, WHOLE, Parallelism.REPLICATED, Parallelism.REPLICATED),
    ],
)
def test_products_are_named_by_the_split_features(left: str, home: str, result: str, dp: Parallelism, tp: Parallelism):
    found = spread(product(left, home, result), home, "", batch=left)
    assert found.kinds == {"dp": (dp,), "tp": (tp,)}
    assert [str(each) for each in found.uses] == [home]


def test_a_parameter_that_is_gathered_for_its_use_is_fully_sharded():
    gathered = f"%g = spmd.all_gather {ROWS} %w out_sharding=<@mesh, {WHOLE}> : tensor<8x8xf32>\n"
    found = spread(product(ROWS, WHOLE, ROWS, "%g"), ROWS, gathered, batch=ROWS)
    assert found.kinds["dp"] == (Parallelism.FULLY_SHARDED, Parallelism.DATA)
    assert (str(found.home), [str(each) for each in found.uses]) == (ROWS, [WHOLE])


def test_split_states_of_a_whole_parameter_are_zero_1():
    found = spread(product(ROWS, WHOLE, ROWS), WHOLE, "", states=ROWS, batch=ROWS)
    assert found.kinds["dp"] == (Parallelism.DATA, Parallelism.STATES)
    assert [str(each) for each in found.states] == [ROWS]


def test_rows_beyond_the_batch_are_a_sequence():
    # Four parts of dp x tp rows fit into a batch of 8, but the rows of the product may also be split further.
    both = '[{"dp", "tp"}, {}]'
    assert spread(product(both, WHOLE, both), WHOLE, "", batch=both).kinds["tp"] == (Parallelism.DATA,)
    tokens = "tensor<16x4xf32>"
    split = '[{"dp", "tp", "sp"}, {}]'
    text = (
        'spmd.mesh @mesh = <["dp"=2, "tp"=4, "sp"=2]>\nfunc.func @step(%w: tensor<4x4xf32> {train.param = "w"}, '
        f'%x: tensor<8x2x4xf32> {{train.batch = "0"}}, %v: {tokens}) -> {tokens} {{\n'
        f"%y = aten.mm %v, %w {{spmd.signature = #spmd.sig<@mesh, ({split}, {WHOLE}) -> ({split})>}} : "
        f"({tokens}, tensor<4x4xf32>) -> {tokens}\nfunc.return %y : {tokens}\n}}"
    )
    module = parse(text, context())
    (found,) = spreads(StepView(step_functions(module)[0], mesh_of_module(module)))
    assert found.kinds == {"dp": (Parallelism.DATA,), "tp": (Parallelism.DATA,), "sp": (Parallelism.SEQUENCE,)}


def test_placements_are_those_of_a_dtensor():
    mesh = Mesh.of(a=2, b=2, c=2)
    assert per_axis(Sharding.of([[], ["b"]], {"c": Reduction.SUM}), mesh) == {
        "a": "Replicate",
        "b": "Shard(1)",
        "c": "Partial(sum)",
    }
