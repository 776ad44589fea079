"""Exact search compared with brute force, and properties at sizes where brute force is impossible."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_problems import layered_problem, perturbed

from shardwright.passes.search import bucket
from shardwright.passes.search.eliminate import LimitReached, Limits, combined, solve
from shardwright.passes.search.problem import Edge, Infeasible, Problem, brute_force
from shardwright.passes.search.reduction import Graph

# Limits that leave the work to a later and later step of the search.
REACHING = {
    "buckets": Limits(),
    "bounds": Limits(cheap_work=40),
    "late_buckets": Limits(cheap_work=0),
    "branching": Limits(cheap_work=0, work=0),
}

SHORT = Limits(cheap_work=100, work=0, sweeps=(1,), branches=3)
"""Limits that end most searches early."""


def random_problem(seed: int, nodes: int = 9, states: int = 5) -> Problem:
    """Return up to `nodes` nodes with forbidden states and pairs, parallel edges and, often, ties."""
    random = np.random.default_rng(seed)
    sizes: list[int] = random.integers(1, states + 1, random.integers(1, nodes + 1)).tolist()
    integral, forbidden = random.random() < 0.4, random.choice([0.0, 0.1, 0.3, 0.5])

    def costs(*shape: int) -> np.ndarray:
        drawn = random.integers(0, 4, shape).astype(float) if integral else random.random(shape)
        return np.where(random.random(shape) < forbidden, np.inf, drawn)

    pairs = random.integers(0, len(sizes), (random.integers(0, 3 * len(sizes)), 2)).tolist()
    edges = (Edge(u, v, costs(sizes[u], sizes[v])) for u, v in pairs if u != v)
    return Problem(tuple(costs(size) for size in sizes), tuple(edges))


def frustrated_problem(seed: int, nodes: int = 12, states: int = 3) -> Problem:
    """Return a dense problem of random costs, where the bound of dual ascent is not tight."""
    random = np.random.default_rng(seed)
    edges = (
        Edge(u, v, random.random((states, states))) for u in range(nodes) for v in range(u) if random.random() < 0.7
    )
    return Problem(tuple(random.random(states) for _ in range(nodes)), tuple(edges))


def pure_bucket_elimination(problem: Problem) -> float:
    """Return the optimum without dominance, reductions and bounds."""
    graph = Graph.of(problem)
    plan = bucket.plan(graph, 10**9, 10**12)
    assert plan is not None
    return bucket.execute(plan, graph)[0]


@pytest.mark.parametrize("limits", REACHING.values(), ids=REACHING)
@pytest.mark.parametrize("seeds", [range(start, start + 50) for start in range(0, 200, 50)], ids=str)
def test_equals_brute_force(limits: Limits, seeds: range) -> None:
    """200 random problems have the same proved optimum, or are infeasible for both."""
    for seed in seeds:
        problem = random_problem(seed, nodes=7)
        try:
            expected = brute_force(problem).cost
        except Infeasible:
            with pytest.raises(Infeasible):
                solve(problem, limits=limits)
            continue
        solution = solve(problem, limits=limits)
        assert solution.cost == pytest.approx(expected, rel=1e-12), seed
        assert solution.cost == problem.cost(solution.assignment)
        assert solution.lower_bound == solution.cost


@given(st.integers(min_value=1000))
@settings(max_examples=50, deadline=None)
def test_equals_brute_force_at_any_seed(seed: int) -> None:
    """Problems drawn by hypothesis have the same optimum."""
    problem = random_problem(seed, nodes=6, states=4)
    try:
        expected = brute_force(problem).cost
    except Infeasible as infeasible:
        expected = infeasible
    try:
        assert solve(problem).cost == pytest.approx(expected, rel=1e-12)
    except Infeasible:
        assert isinstance(expected, Infeasible)


@pytest.mark.parametrize("limits", REACHING.values(), ids=REACHING)
def test_gaps_of_loose_bounds_are_closed(limits: Limits) -> None:
    """If dual ascent leaves a gap, the later steps close it."""
    for seed in range(4):
        problem = frustrated_problem(seed)
        solution = solve(problem, limits=limits)
        assert solution.cost == pytest.approx(pure_bucket_elimination(problem), rel=1e-12)
        assert solution.is_optimal


def test_limits_leave_an_honest_bound() -> None:
    """A search that stops early reports a valid lower bound."""
    open_gaps = 0
    for seed in range(10):
        problem = frustrated_problem(seed)
        optimum = pure_bucket_elimination(problem)
        try:
            solution = solve(problem, limits=SHORT)
        except LimitReached:
            continue
        open_gaps += not solution.is_optimal
        assert solution.lower_bound <= optimum + 1e-9
        assert solution.cost >= optimum - 1e-9
    assert open_gaps


def test_assignments_are_combined_to_the_best_of_their_states() -> None:
    """The result is the optimum over the states that the assignments have; it improves on the best of them."""
    improved = 0
    for seed in range(20):
        problem, random = frustrated_problem(seed, nodes=8), np.random.default_rng(seed)
        given = [random.integers(0, 3, 8) for _ in range(2)]
        found = combined(problem, given, Limits())
        corners = itertools.product(*zip(*given, strict=True))
        assert problem.cost(found) == pytest.approx(min(map(problem.cost, corners)))
        improved += problem.cost(found) < min(map(problem.cost, given))
    assert improved


def test_assignments_that_cannot_be_combined_leave_the_cheapest() -> None:
    """Limits that end the search at once, and states that conflict wherever they are mixed."""
    problem, random = frustrated_problem(1), np.random.default_rng(1)
    given = [random.integers(0, 3, 12) for _ in range(3)]
    none = Limits(cheap_work=0, work=0, sweeps=(1,), branches=0)
    assert problem.cost(combined(problem, given, none)) <= min(map(problem.cost, given))
    never = Problem((np.zeros(2), np.zeros(2)), (Edge(0, 1, np.full((2, 2), np.inf)),))
    apart = [np.array([0, 0]), np.array([1, 1])]
    assert combined(never, apart, Limits()) is apart[0]


def test_a_search_among_some_states_finds_their_optimum() -> None:
    """Forbidding all other states gives the same optimum; states that conflict are reported as not found."""
    for seed in range(10):
        problem, random = frustrated_problem(seed, nodes=8), np.random.default_rng(seed)
        among = [np.sort(random.permutation(3)[: random.integers(1, 4)]) for _ in problem.unary]
        masks = [np.isin(np.arange(3), states) for states in among]
        unary = tuple(np.where(mask, costs, np.inf) for mask, costs in zip(masks, problem.unary, strict=True))
        found = solve(problem, among=among)
        assert found.cost == pytest.approx(solve(Problem(unary, problem.edges)).cost)
        assert all(state in states for state, states in zip(found.assignment, among, strict=True))
    never = Problem((np.zeros(2), np.zeros(2)), (Edge(0, 1, np.array([[np.inf, 0.0], [0.0, 0.0]])),))
    with pytest.raises(LimitReached, match="among the given states"):
        solve(never, among=[np.array([0]), np.array([0])])


def test_a_known_assignment_is_improved_or_returned() -> None:
    """The optimum is found from any assignment; a search that stops early returns none that costs more."""
    worse = 0
    for seed in range(10):
        problem = frustrated_problem(seed)
        optimum = pure_bucket_elimination(problem)
        first = np.zeros(len(problem.unary), dtype=np.int64)
        best = solve(problem, known=first)
        assert best.cost == pytest.approx(optimum, rel=1e-12)
        kept = solve(problem, limits=SHORT, known=best.assignment)
        assert kept.cost == pytest.approx(optimum, rel=1e-12)
        assert kept.lower_bound <= optimum + 1e-9
        early = solve(problem, limits=SHORT, known=first)
        assert early.lower_bound <= optimum + 1e-9
        assert optimum - 1e-9 <= early.cost <= problem.cost(first)
        worse += early.cost > optimum + 1e-9
    assert worse, "these limits find every optimum, so they show nothing"


def test_empty_problem() -> None:
    """A problem without nodes has cost 0."""
    solution = solve(Problem((), ()))
    assert (solution.cost, solution.lower_bound, len(solution.assignment)) == (0.0, 0.0, 0)


def test_ties_are_broken_the_same_way_every_time() -> None:
    """Every run returns the same of two equal optima, which a mesh of two equal axes causes."""
    problem = random_problem(5)
    uniform = Problem(
        tuple(np.zeros_like(costs) for costs in problem.unary),
        tuple(Edge(edge.u, edge.v, np.ones_like(edge.table)) for edge in problem.edges),
    )
    assert solve(uniform).assignment.tolist() == [0] * len(problem.unary)


class TestInfeasible:
    """The error names a minimal set of conflicting nodes."""

    def test_node(self) -> None:
        """A node has no state."""
        problem = Problem((np.zeros(2), np.full(3, np.inf)), (Edge(0, 1, np.zeros((2, 3))),))
        with pytest.raises(Infeasible, match="node 1 has no state") as caught:
            solve(problem)
        assert caught.value.nodes == (1,)

    def test_edge(self) -> None:
        """Two nodes have no allowed pair of states."""
        table = np.array([[np.inf, 0.0], [np.inf, np.inf]])
        unary = (np.zeros(2), np.zeros(2), np.array([np.inf, 1.0]), np.array([1.0, np.inf]))
        problem = Problem(unary, (Edge(0, 1, np.zeros((2, 2))), Edge(1, 2, table), Edge(3, 2, table.T)))
        with pytest.raises(Infeasible, match="nodes 2 and 3 have no pair") as caught:
            solve(problem)
        assert caught.value.nodes == (2, 3)

    def test_cycle(self) -> None:
        """Three nodes with two states must all differ, among other nodes."""
        differ = np.array([[np.inf, 0.0], [0.0, np.inf]])
        cycle = (Edge(2, 4, differ), Edge(4, 5, differ), Edge(5, 2, differ))
        around = tuple(Edge(node, node + 1, np.ones((2, 2))) for node in range(7))
        with pytest.raises(Infeasible, match="3 nodes have no states of finite cost together") as caught:
            solve(Problem((np.zeros(2),) * 8, around + cycle))
        assert caught.value.nodes == (2, 4, 5)

    def test_random_conflicts_are_minimal(self) -> None:
        """The named nodes conflict, and any one node fewer would not."""
        for seed in range(40):
            problem = random_problem(seed, nodes=7)
            try:
                solve(problem)
            except Infeasible as infeasible:
                named = infeasible.nodes
                assert not feasible_on(problem, named)
                assert all(feasible_on(problem, set(named) - {node}) for node in named)


def feasible_on(problem: Problem, nodes: tuple[int, ...] | set[int]) -> bool:
    """Return whether the part of `problem` on `nodes` has an assignment of finite cost."""
    free = tuple(costs if node in nodes else np.zeros(1) for node, costs in enumerate(problem.unary))
    inside = tuple(edge for edge in problem.edges if edge.u in nodes and edge.v in nodes)
    try:
        brute_force(Problem(free, inside))
    except Infeasible:
        return False
    return True


class TestLayered:
    """Graphs with the shape of a training step."""

    def test_equals_pure_bucket_elimination(self) -> None:
        """A perturbed block is narrow enough for bucket elimination alone after reduction."""
        problem = perturbed(layered_problem(1), seed=0)
        eliminated = solve(problem, limits=Limits(entries=10**8, cheap_work=10**11))
        bounded = solve(problem)
        assert "seconds_dual_ascent" not in eliminated.statistics
        assert "seconds_dual_ascent" in bounded.statistics
        assert bounded.cost == pytest.approx(eliminated.cost, rel=1e-12)

    @pytest.mark.parametrize("shared", [True, False], ids=["equal_layers", "unequal_layers"])
    def test_is_solved_exactly(self, shared: bool) -> None:
        """Random costs keep the bound from being trivially tight."""
        for seed in range(2):
            assert solve(perturbed(layered_problem(3), seed, shared=shared)).is_optimal

    def test_depth_costs_look_ups_only(self) -> None:
        """Equal layers fold: 48 layers take hardly more computations than 6."""
        few, many = (solve(layered_problem(layers)) for layers in (6, 48))
        assert many.is_optimal
        assert many.statistics["computed"] <= few.statistics["computed"] + 200
        assert many.statistics["computed_bypass"] <= few.statistics["computed_bypass"] + 5

    def test_equal_chains_take_a_logarithm(self) -> None:
        """A chain of equal tables halves in every round."""
        table, costs = np.random.default_rng(0).random((6, 6)), np.zeros(6)
        chain = tuple(Edge(node, node + 1, table) for node in range(1023))
        solution = solve(Problem((costs,) * 1024, chain))
        assert solution.is_optimal
        assert solution.statistics["computed_bypass"] <= 40
