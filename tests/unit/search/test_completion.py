"""Completions of decided nodes, and tied problems, compared with brute force."""

from __future__ import annotations

import numpy as np
import pytest
from ir_files import context, parse
from small_searches import head

from shardwright.passes.search.algorithms import elimination_steps
from shardwright.passes.search.algorithms.completion import Completion
from shardwright.passes.search.algorithms.elimination_steps import FiniteModel
from shardwright.passes.search.algorithms.ties import least_cost, tied
from shardwright.passes.search.constraints import constraints_of
from shardwright.passes.search.problem import Edge, Infeasible, Problem, brute_force
from shardwright.passes.search.reduction import Graph
from shardwright.passes.search.strategy import build_problem
from shardwright.passes.search.strategy_problem import StrategyProblem
from shardwright.passes.step.step_view import StepView, step_views

CHAIN = """
func.func @step(%x: tensor<8x64xf32> {train.batch = "x"}, PARAMETERS) -> tensor<8x64xf32> {
BODY
  func.return %vLAST : tensor<8x64xf32>
}
"""


def random_problem(seed: int, nodes: int = 7, states: int = 4) -> Problem:
    """Return a problem with forbidden states and pairs."""
    random = np.random.default_rng(seed)
    sizes: list[int] = random.integers(1, states + 1, nodes).tolist()

    def costs(*shape: int) -> np.ndarray:
        return np.where(random.random(shape) < 0.1, np.inf, random.random(shape))

    pairs = random.integers(0, nodes, (2 * nodes, 2)).tolist()
    edges = (Edge(u, v, costs(sizes[u], sizes[v])) for u, v in pairs if u != v)
    return Problem(tuple(costs(size) for size in sizes), tuple(edges))


def decided_at(problem: Problem, states: dict[int, int]) -> Problem:
    """Return the problem with some nodes restricted to one state."""
    unary = list(problem.unary)
    for node, state in states.items():
        unary[node] = np.where(np.arange(len(unary[node])) == state, unary[node], np.inf)
    return Problem(tuple(unary), problem.edges)


def step_of_layers(count: int) -> tuple[StrategyProblem, StepView]:
    """Return the problem of a chain of equal layers."""
    names = range(count)
    parameters = ", ".join(f'%w{i}: tensor<64x64xf32> {{train.param = "h.{i}.weight"}}' for i in names)
    body = "\n".join(
        f"  %v{i} = aten.mm %{f'v{i - 1}' if i else 'x'}, %w{i} : (tensor<8x64xf32>, tensor<64x64xf32>)"
        f' -> tensor<8x64xf32> loc("h.{i}")'
        for i in names
    )
    text = CHAIN.replace("PARAMETERS", parameters).replace("BODY", body).replace("LAST", str(count - 1))
    ((view, cluster),) = step_views(parse(head(1e6, nodes=2) + text, context()))
    return build_problem(view, cluster, constraints_of(view)), view


@pytest.mark.parametrize("most", [1, 1 << 16], ids=["tables of one entry", "large tables"])
@pytest.mark.parametrize("seeds", [range(start, start + 20) for start in (0, 20, 40)], ids=str)
def test_completions_cost_least(seeds: range, most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(elimination_steps, "MAX_JOINT", most)
    for seed in seeds:
        problem = random_problem(seed)
        model = FiniteModel.of(Graph.of(problem))
        completion = Completion(model, range(2, 7), spare=range(2, 7))
        assert set(completion.decided) >= {0, 1}
        random = np.random.default_rng(seed)
        draws = [{node: int(random.integers(model.size(node))) for node in completion.decided} for _ in range(5)]
        costs = [completion.cost(states) for states in draws]
        columns = {node: np.array([states[node] for states in draws]) for node in completion.decided}
        assert completion.costs(columns).tolist() == pytest.approx(costs)
        for states, cost in zip(draws, costs, strict=True):
            again, chosen = completion.completed(states, {})
            assert again == cost
            try:
                assert cost == pytest.approx(brute_force(decided_at(problem, states)).cost)
                assert problem.cost([chosen[node] for node in range(7)]) == pytest.approx(cost)
            except Infeasible:
                assert cost >= model.forbidden


@pytest.mark.parametrize("seed", range(20))
def test_pinned_nodes_keep_their_states(seed: int):
    problem = random_problem(seed)
    completion = Completion(FiniteModel.of(Graph.of(problem)), range(2, 7), spare=())
    state = len(problem.unary[4]) - 1
    states = {0: 0, 1: len(problem.unary[1]) - 1}
    cost, chosen = completion.completed(states, {4: state})
    assert (chosen[0], chosen[1], chosen[4]) == (*states.values(), state)
    free, _ = completion.completed(states, {})
    assert free <= cost
    try:
        assert cost == pytest.approx(brute_force(decided_at(problem, {**states, 4: state})).cost)
    except Infeasible:
        assert cost >= completion.model.forbidden


def test_unchanged_messages_are_looked_up():
    problem = random_problem(3, nodes=9)
    completion = Completion(FiniteModel.of(Graph.of(problem)), range(2, 9), spare=())
    completion.cost({0: 0, 1: 0})
    first = completion.computed
    completion.cost({0: 0, 1: 0})
    assert (completion.computed, completion.looked_up) == (first, first)


def test_tied_layers_cost_the_same_as_their_expansion():
    problem, view = step_of_layers(4)
    nodes = tied(problem, view, frozenset())
    # The tied nodes are the products and their parameters.
    assert nodes.tied_nodes == 6
    random = np.random.default_rng(0)
    for _ in range(50):
        states = [int(random.integers(len(costs))) for costs in nodes.problem.unary]
        expanded = nodes.expanded(states)
        assert nodes.problem.cost(states) == pytest.approx(problem.problem.cost(expanded))
        assert least_cost(problem.problem) <= problem.problem.cost(expanded)


def test_without_ties_every_node_is_its_own_class():
    problem, view = step_of_layers(3)
    nodes = tied(problem, view, frozenset({"ties"}))
    assert nodes.tied_nodes == 0
    assert nodes.problem is problem.problem
