"""Dual ascent: its bounds never fall, and no floor of a state is above its least cost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from synthetic_problems import layered_problem

from shardwright.passes.search.dual_ascent import DualAscent
from shardwright.passes.search.problem import Edge, Problem, brute_force
from shardwright.passes.search.reduction import Graph, reduce


def random_graph(seed: int) -> tuple[Problem, Graph]:
    """Return a dense problem and its graph; all nodes have at least three neighbours."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 5, 6)
    shared = [random.random(size) for size in sizes]
    pairs = ((u, v) for u in range(6) for v in range(u))
    edges = (Edge(u, v, random.random((sizes[u], sizes[v]))) for u, v in pairs if (u + v) % 5 != seed % 5)
    problem = Problem(tuple(shared), tuple(edges))
    return problem, Graph.of(problem)


def test_bounds_rise_and_stay_below_the_optimum() -> None:
    """Each sweep raises the bound or keeps it."""
    for seed in range(10):
        problem, graph = random_graph(seed)
        ascent, bounds = DualAscent(graph), []
        for _ in range(8):
            ascent.sweep()
            bounds.append(ascent.bound)
        assert all(later >= earlier - 1e-12 for earlier, later in pairwise(bounds))
        assert bounds[-1] <= brute_force(problem).cost + 1e-12


def test_floors_are_below_the_best_of_every_state() -> None:
    """The floor of a state is a lower bound for all assignments with that state."""
    for seed in range(10):
        problem, graph = random_graph(seed)
        ascent = DualAscent(graph)
        ascent.sweep(1 + seed)
        for node, floors in ascent.floors().items():
            for state, floor in enumerate(floors):
                forced = np.where(np.arange(len(floors)) == state, problem.unary[node], np.inf)
                unary = (*problem.unary[:node], forced, *problem.unary[node + 1 :])
                assert floor <= brute_force(Problem(unary, problem.edges)).cost + 1e-12


def test_a_tight_bound_is_the_optimum() -> None:
    """On a cycle of attractive tables the bound meets the cost."""
    agree = np.where(np.eye(3), 0.0, 1.0)
    costs = [np.array(row) for row in ([0.0, 1, 2], [2.0, 0, 1], [0.0, 2, 2], [0.0, 3, 1])]
    edges = tuple(Edge(u, v, agree) for u in range(4) for v in range(u))
    problem = Problem(tuple(costs), edges)
    ascent = DualAscent(Graph.of(problem))
    ascent.sweep(20)
    assert abs(ascent.bound - brute_force(problem).cost) < 1e-9


def test_the_graph_is_not_changed() -> None:
    """Dual ascent does not modify the graph, which is used afterwards."""
    _, graph = random_graph(0)
    before = (dict(graph.unary), {node: dict(tables) for node, tables in graph.adjacency.items()})
    DualAscent(graph).sweep(3)
    assert before == (graph.unary, graph.adjacency)


def test_a_pruned_graph_starts_where_its_parent_ended() -> None:
    """After states above a ceiling are dropped, one sweep restores the bound."""
    for seed in range(10):
        problem, graph = random_graph(seed)
        ascent = DualAscent(graph)
        ascent.sweep(12)
        kept = DualAscent(graph.below(ascent.floors(), brute_force(problem).cost + 1e-9), ascent)
        kept.sweep()
        assert ascent.bound - 1e-12 <= kept.bound <= brute_force(problem).cost + 1e-12


def test_leaps_speed_up_a_slowly_rising_bound() -> None:
    """A change at one end of a chain of layers reaches the other end in fewer sweeps than layers."""
    graph = Graph.of(layered_problem(24))
    reduce(graph)
    ascent = DualAscent(graph)
    ascent.sweep(24)
    early = ascent.bound
    ascent.sweep(200)
    assert early >= ascent.bound * (1 - 1e-3)
