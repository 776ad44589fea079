"""search-strategy: elimination finds the optimum of exhaustive search, and reports the cost of the written IR."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_files import context, parse
from small_searches import LAYERS, head, report, searched, steps
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, SSAValue

from shardwright.dialects import train
from shardwright.dialects.compute import ComputeOp, element_bytes, shape_of
from shardwright.dialects.step import is_regathered, sharding_of, working_of
from shardwright.ir.cluster import Cluster
from shardwright.ir.sharding import Sharding
from shardwright.passes.analysis.compute import seconds_by_signature
from shardwright.passes.analysis.resharding import ReshardCosts
from shardwright.passes.errors import PassError
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import StepView, cluster_of_module, step_functions


def written_cost(module: ModuleOp) -> float:
    """Return the seconds of the strategy in the IR: of its ops, and of resharding between homes, copies and uses."""
    (func,) = step_functions(module)
    cluster = cluster_of_module(module)
    view, costs = StepView(func, cluster.mesh), ReshardCosts(cluster)
    total = sum(_op_cost(op, cluster) for op in view.ops)
    values = (*func.body.block.args, *(result for op in view.ops for result in op.outs))
    return total + sum(_value_cost(value, costs) for value in values) + _result_cost(view, func, costs)


def _op_cost(op: ComputeOp, cluster: Cluster) -> float:
    assert op.signature is not None
    (seconds,) = seconds_by_signature(op, [op.signature], cluster, joining=True)
    return seconds


def _change(value: SSAValue, source: Sharding, target: Sharding, costs: ReshardCosts) -> float:
    return float(costs.matrix(shape_of(value), element_bytes(value), [source], [target])[0, 0])


def _value_cost(value: SSAValue, costs: ReshardCosts) -> float:
    home, working = sharding_of(value), working_of(value)
    shared = working if working is not None else home
    total = _change(value, home, shared, costs) * (2 if is_regathered(value) else 1)
    for use in value.uses:
        if isinstance(use.operation, ComputeOp) and use.operation.signature is not None:
            update = isinstance(value, BlockArgument) and isinstance(use.operation, train.TrainOp)
            demand = use.operation.signature.operands[use.index]
            total += _change(value, home if update else shared, demand, costs)
    return total


def _result_cost(view: StepView, func: FuncOp, costs: ReshardCosts) -> float:
    total = 0.0
    for index, value in enumerate(view.terminator.arguments):
        if (target := view.updated.get(index)) is not None:
            total += _change(value, sharding_of(value), sharding_of(func.body.block.args[target]), costs)
        elif train.LOSS in view.result_attributes(index):
            total += _change(value, sharding_of(value), Sharding.replicated(len(shape_of(value))), costs)
    return total


slowness = st.sampled_from((1e4, 1e6, 1e9))
latencies = st.sampled_from((1e-9, 1e-6, 1e-3))


@settings(max_examples=30)
@given(steps(), slowness, latencies)
def test_elimination_finds_the_optimum_of_exhaustive_search(step: str, rate: float, alpha: float):
    text = head(rate, alpha) + step
    found, best = report(searched(text)), report(searched(text, "algorithm=exhaustive"))
    assert found["cost"] == pytest.approx(best["cost"], rel=1e-12)
    assert found["lower_bound"] == pytest.approx(found["cost"], rel=1e-9)


@settings(max_examples=30)
@given(steps(most=6), slowness, latencies, st.sampled_from((1, 2)))
def test_the_reported_cost_equals_the_cost_of_the_written_ir(step: str, rate: float, alpha: float, nodes: int):
    module = searched(head(rate, alpha, nodes=nodes) + step)
    assert report(module)["cost"] == pytest.approx(written_cost(module), rel=1e-9)


@settings(max_examples=15)
@given(steps(most=6), slowness, st.sampled_from((1, 2)))
def test_a_second_run_decides_the_same(step: str, rate: float, nodes: int):
    text = head(rate, nodes=nodes) + step
    ctx = context()
    module = parse(text, ctx)
    lower = "search-strategy,program,finish"
    run_pipeline(ctx, module, lower)
    once = report(module)
    run_pipeline(ctx, module, lower)
    assert report(module) == once


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("alpha", [1e-7, 1e-5, 1e-3])
def test_the_reported_cost_of_layers_equals_the_cost_of_the_written_ir(nodes: int, alpha: float):
    module = searched(head(1e9, alpha, nodes=nodes) + LAYERS)
    found = report(module)
    assert found["cost"] == pytest.approx(written_cost(module), rel=1e-9)
    assert found["lower_bound"] == pytest.approx(found["cost"], rel=1e-9)


def test_less_memory_costs_more_time():
    text = head(1e9) + LAYERS
    free = report(searched(text))
    limit = int(0.95 * float(free["peak_bytes"]))
    module = searched(text, f"memory={limit}")
    tight = report(module)
    assert float(tight["peak_bytes"]) <= limit
    assert float(free["cost"]) < float(tight["cost"]) == pytest.approx(written_cost(module), rel=1e-9)
    assert float(free["cost"]) <= float(tight["lower_bound"]) * (1 + 1e-9)
    assert float(tight["lower_bound"]) <= float(tight["cost"])


def test_a_sufficient_memory_limit_changes_nothing():
    text = head(1e9) + LAYERS
    free = report(searched(text))
    assert report(searched(text, f"memory={free['peak_bytes']}")) == free


def test_an_insufficient_memory_limit_is_refused_with_the_missing_bytes():
    with pytest.raises(PassError, match=r"no strategy fits: the arguments of the step alone .* need .* too much; use"):
        searched(head(1e9) + LAYERS, "memory=1000")
