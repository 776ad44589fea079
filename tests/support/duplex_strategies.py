"""All strategies for duplex training of a very small step, as a reference for `pareto-dp`."""

from collections.abc import Iterator
from itertools import chain, combinations
from math import prod

import numpy as np
from hypothesis import assume
from numpy.typing import NDArray
from xdsl.ir import BlockArgument, OpResult

from shardwright.dialects.compute import ComputeOp
from shardwright.dialects.train import is_update
from shardwright.ir.sharding import Sharding
from shardwright.passes.search.strategy_problem import StrategyProblem
from shardwright.passes.step.step_view import StepView

Seconds = NDArray[np.float64]

MOST = 60_000
"""The largest number of assignments that is enumerated."""


def divisions(ops: frozenset[int], before: dict[int, set[int]]) -> Iterator[tuple[frozenset[int], ...]]:
    """Yield every division of ops into successive phases such that operands precede their users."""
    if not ops:
        yield ()
    subsets = chain.from_iterable(combinations(sorted(ops), size) for size in range(1, len(ops) + 1))
    for phase in map(frozenset, subsets):
        rest = ops - phase
        if all(before[op].isdisjoint(rest) for op in phase):
            yield from ((phase, *later) for later in divisions(rest, before))


def needs_messages(source: Sharding, target: Sharding) -> bool:
    """Return whether changing an even sharding needs communication, not only a slice or added zeros."""
    if not set(source.partial_axes) <= set(target.partial_axes):
        return True
    pairs = zip(source.dims, target.dims, strict=True)
    return any(list(have.axes) != list(want.axes)[: len(have.axes)] for have, want in pairs)


def least_psi(problem: StrategyProblem, view: StepView) -> float:
    """
    Return the least psi over all assignments and all divisions into phases, computed directly by equations 4 and 5.

    Only the first micro-batch waits for gathers of arguments other than batch items. Only the second has reductions of
    gradients, and updates.
    """
    sizes = [len(decision.states) for decision in problem.decisions]
    assume(prod(sizes) <= MOST)
    states = np.unravel_index(np.arange(prod(sizes)), sizes)
    nodes = {d.subject: n for n, d in enumerate(problem.decisions) if isinstance(d.subject, ComputeOp)}
    before = {
        node: {nodes[v.op] for v in op.args if isinstance(v, OpResult) and isinstance(v.op, ComputeOp)}
        for op, node in nodes.items()
    }
    rows = {given.argument for given in view.inputs if given.rows}
    sent, local, users, makers = list[Seconds](), list[Seconds](), list[set[int]](), list[int]()
    for edge, traffic in zip(problem.problem.edges, problem.traffic, strict=True):
        seconds = traffic.seconds()
        seconds = np.zeros(edge.table.shape) if seconds is None else seconds
        messages = np.array([[needs_messages(a, b) for b in traffic.targets] for a in traffic.sources])
        at = states[edge.u], states[edge.v]
        share = np.array([[0.5], [0.5]])
        if traffic.price.beside and traffic.move.value not in rows:
            share = np.array([[1.0], [0.0]] if isinstance(traffic.move.value, BlockArgument) else [[0.0], [1.0]])
        assert np.isfinite(edge.table).all()
        sent.append(np.where(messages, seconds, 0.0)[at] * share)
        local.append(np.where(messages, 0.0, seconds)[at] * share)
        users.append(_users(problem, edge.v, nodes))
        value = problem.decisions[edge.u].subject
        maker = value.op if isinstance(value, OpResult) else value
        makers.append(nodes[maker] if isinstance(maker, ComputeOp) else -1)
    best = np.inf
    for phases in divisions(frozenset(nodes.values()), before):
        where = {op: number for number, phase in enumerate(phases) for op in phase}
        comm = [np.zeros((2, prod(sizes))) for _ in range(len(phases) + 1)]
        comp = [np.zeros((2, prod(sizes))) for _ in range(len(phases) + 1)]
        for node, seconds in enumerate(problem.seconds):
            if seconds is not None:
                subject = problem.decisions[node].subject
                updates = isinstance(subject, ComputeOp) and is_update(subject)
                comp[where[node]] += seconds[states[node]] * ([[0.0], [1.0]] if updates else [[0.5], [0.5]])
        for node, seconds in problem.ends.items():
            comm[-1] += seconds[states[node]] / 2
        for mine, slices, ops, maker in zip(sent, local, users, makers, strict=True):
            number = min((where[op] for op in ops), default=len(phases))
            inside = maker >= 0 and where[maker] == number
            comm[number] += np.where(mine > 0, np.inf, 0.0) if inside else mine
            comp[number] += slices
        psi = phi = np.zeros(prod(sizes))
        for communication, computation in zip(comm, comp, strict=True):
            first = psi + phi + np.maximum(-phi, communication[0])
            psi, phi = first + np.maximum(communication[1], computation[0]) + computation[1], -computation[1]
        best = min(best, float(psi.min()))
    return best


def _users(problem: StrategyProblem, node: int, nodes: dict[ComputeOp, int]) -> set[int]:
    """Return the ops that use a decision; the first of them pays for resharding to it."""
    decision = problem.decisions[node]
    if isinstance(decision.subject, ComputeOp):
        return {node}
    if not decision.copy:
        return set()
    argument = isinstance(decision.subject, BlockArgument)
    reading = [use.operation for use in decision.subject.uses if isinstance(use.operation, ComputeOp)]
    return {nodes[op] for op in reading if not (argument and is_update(op))}
