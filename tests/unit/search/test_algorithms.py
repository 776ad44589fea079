"""The algorithms of search-strategy agree on small problems: exact ones find the optimum, and heuristics come close."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ir_files import context, parse
from small_searches import LAYERS, head, steps
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import PassFailedException

from shardwright.api.compile import import_training_step
from shardwright.ir.cluster_file import find_cluster
from shardwright.models.mlp import mlp_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.search.algorithms.interface import Effort, SearchTask
from shardwright.passes.search.algorithms.table import AlgorithmName, find_algorithm
from shardwright.passes.search.constraints import constraints_of
from shardwright.passes.search.memory import Prices
from shardwright.passes.search.objective import Weights
from shardwright.passes.search.strategy import build_problem
from shardwright.passes.search.strategy_problem import StrategyProblem
from shardwright.passes.search.within_memory import ConstrainedSolution
from shardwright.passes.step.step_view import step_views

EXACT: tuple[AlgorithmName, ...] = ("eliminate", "exhaustive", "ilp", "astar")
"""The algorithms that find and prove the optimum of a small problem."""

HEURISTIC: tuple[AlgorithmName, ...] = ("random", "metropolis", "coordinate-descent")

PROBLEMS = 200
PLENTY = 1e15


def task_of(text: str) -> SearchTask:
    """Return the task of searching the step in `text`."""
    return task_on(parse(text, context()), PLENTY)


def task_on(module: ModuleOp, limit: float) -> SearchTask:
    """Return the task of searching the step of a module within some bytes."""
    ((view, cluster),) = step_views(module)
    constraints = constraints_of(view)

    def build(prices: Prices) -> StrategyProblem:
        return build_problem(view, cluster, constraints, Weights(), prices)

    return SearchTask(view, cluster, build, limit)


def result(algorithm: AlgorithmName, task: SearchTask, **effort: object) -> ConstrainedSolution:
    """Return the result of an algorithm."""
    return find_algorithm(algorithm)(replace(task, effort=Effort(**effort)))  # pyright: ignore[reportArgumentType]


@cache
def small_tasks() -> list[SearchTask]:
    """Return tasks on random steps, the same in every run."""
    texts: list[str] = []

    @settings(
        max_examples=PROBLEMS,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.nested_given],
    )
    @given(steps(most=4), st.sampled_from((1e4, 1e6, 1e9)), st.sampled_from((1e-9, 1e-6, 1e-3)))
    def collect(step: str, rate: float, alpha: float) -> None:
        texts.append(head(rate, alpha) + step)

    collect()
    return [task_of(text) for text in texts]


@cache
def optima() -> list[float]:
    """Return the least cost of every small task, found by elimination."""
    return [result("eliminate", task).cost for task in small_tasks()]


def test_there_are_enough_problems():
    assert len(small_tasks()) == PROBLEMS
    assert len({round(cost, 12) for cost in optima()}) > PROBLEMS // 4


@pytest.mark.parametrize("algorithm", EXACT)
def test_exact_algorithms_find_the_same_optimum(algorithm: AlgorithmName):
    for task, optimum in zip(small_tasks(), optima(), strict=True):
        found = result(algorithm, task)
        assert found.cost == pytest.approx(optimum, rel=1e-9)
        # An integer program rounds costs down to its resolution.
        assert found.lower_bound == pytest.approx(optimum, rel=1e-6)
        assert found.lower_bound <= found.cost


@pytest.mark.parametrize("algorithm", HEURISTIC)
def test_heuristics_come_within_a_hundredth_of_the_optimum(algorithm: AlgorithmName):
    close = 0
    for task, optimum in zip(small_tasks(), optima(), strict=True):
        # Reduction alone solves nearly all of these problems.
        found = result(algorithm, task, seed=1, without=frozenset({"reduction"}))
        assert found.cost >= optimum * (1 - 1e-9)
        assert found.lower_bound <= optimum * (1 + 1e-9)
        close += found.cost <= 1.01 * optimum
    assert close >= 0.9 * PROBLEMS


@pytest.mark.parametrize("algorithm", HEURISTIC)
def test_heuristics_are_the_same_for_the_same_seed(algorithm: AlgorithmName):
    task = task_of(head(1e6) + LAYERS)
    once, again = (result(algorithm, task, seed=3, budget=40).solution for _ in range(2))
    assert once.assignment.tolist() == again.assignment.tolist()
    assert once.statistics == again.statistics
    assert once.statistics["visited"] == 40


@pytest.mark.parametrize("algorithm", HEURISTIC)
def test_a_larger_budget_is_never_worse(algorithm: AlgorithmName):
    task = task_of(head(1e9, nodes=2) + LAYERS)
    costs = [result(algorithm, task, budget=budget).cost for budget in (1, 10, 300)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1]


@cache
def step_of_products() -> ModuleOp:
    """Return a step of three products on four devices, with mostly parameters in memory."""
    module = import_training_step(mlp_step((32, 64, 64, 16), batch=16))
    run_pipeline(context(), module, "prepare")
    add_cluster(module, find_cluster("local-4"))
    return module


def free_peak() -> float:
    """Return the peak bytes of its optimum without a memory limit."""
    return result("eliminate", task_on(step_of_products(), PLENTY)).peak_bytes


@pytest.mark.parametrize("share", [0.9, 0.4])
def test_exact_algorithms_agree_within_their_gaps_if_memory_is_short(share: float):
    free = result("eliminate", task_on(step_of_products(), PLENTY))
    task = task_on(step_of_products(), share * free.peak_bytes)
    priced, program = result("eliminate", task), result("ilp", task)
    for found in (priced, program):
        assert found.peak_bytes <= task.limit
        assert free.cost < found.cost
        assert found.lower_bound <= min(priced.cost, program.cost) * (1 + 1e-9)
    # Prices leave a gap, constraints do not.
    assert program.cost <= priced.cost * (1 + 1e-9)
    assert program.lower_bound == pytest.approx(program.cost, rel=1e-6)


@pytest.mark.parametrize("algorithm", HEURISTIC)
def test_replication_falls_until_the_strategy_fits(algorithm: AlgorithmName):
    limit = 0.6 * free_peak()
    tight = result(algorithm, task_on(step_of_products(), limit), budget=100)
    assert tight.peak_bytes <= limit
    assert tight.solution.statistics["replication"] == 1


@pytest.mark.parametrize("algorithm", [*HEURISTIC, "ilp"])
def test_a_strategy_that_does_not_fit_is_refused_with_the_missing_bytes(algorithm: AlgorithmName):
    with pytest.raises(PassFailedException, match=r"the arguments of the step alone .* need .* too much"):
        result(algorithm, task_on(step_of_products(), 1000))
    with pytest.raises(PassFailedException, match=r"the tightest found needs .* too much"):
        result(algorithm, task_on(step_of_products(), 0.28 * free_peak()), budget=30)
