"""Explain why a model has no assignment: find a few nodes that cannot be assigned together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from .problem import Costs, Edge, Infeasible, Problem


def explain_conflict(problem: Problem, is_infeasible: Callable[[Problem], bool]) -> Infeasible:
    """
    Return the error for an infeasible `problem`, with a minimal set of conflicting nodes.

    The last node of the shortest infeasible prefix belongs to the conflict. It moves to the front, and the search
    repeats on the prefix until the nodes at the front conflict by themselves. The number of trials per
    conflicting node is logarithmic in the problem's size.
    """
    hard = _hard_part(problem)
    named: list[int] = []
    candidates = list(range(len(problem.unary)))
    while not is_infeasible(_induced(hard, named)):
        lengths = range(len(candidates))
        last = bisect_left(lengths, True, key=lambda n: is_infeasible(_induced(hard, named + candidates[: n + 1])))
        if last == len(candidates):
            named += candidates
            break
        named.append(candidates[last])
        candidates = candidates[:last]
    named.sort()
    match named:
        case [node]:
            reason = f"node {node} has no state of finite cost"
        case [u, v]:
            reason = f"nodes {u} and {v} have no pair of states of finite cost"
        case _:
            reason = f"{len(named)} nodes have no states of finite cost together"
    return Infeasible(named, reason)


def _hard_part(problem: Problem) -> Problem:
    """Return `problem` with every finite cost zero; shared arrays stay shared."""
    cache: dict[int, Costs] = {}

    def harden(costs: Costs) -> Costs:
        if id(costs) not in cache:
            cache[id(costs)] = np.where(np.isfinite(costs), 0.0, np.inf)
        return cache[id(costs)]

    return Problem(
        tuple(map(harden, problem.unary)),
        tuple(Edge(edge.u, edge.v, harden(edge.table)) for edge in problem.edges),
    )


def _induced(problem: Problem, nodes: Sequence[int]) -> Problem:
    """Return the part of `problem` on `nodes`, renumbered in that order."""
    position = {node: number for number, node in enumerate(nodes)}
    return Problem(
        tuple(problem.unary[node] for node in nodes),
        tuple(
            Edge(position[edge.u], position[edge.v], edge.table)
            for edge in problem.edges
            if edge.u in position and edge.v in position
        ),
    )
