"""
Planning again, from the IR of a plan, for a changed cluster: another number of devices, or other devices.

The processes of the old plan are assigned to the ranks of the new one so that the least state is moved.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from ..ir.cluster import Cluster
from ..ir.state_moves import Box, Moves, SpreadState, kept_ranks, state_moves
from ..passes.pipeline import Pipeline
from ..passes.planning.records import CandidateRecord
from ..passes.search_plan import SearchPlanPass
from .compile import CompiledStep, PlanOptions, lower
from .plan_record import PlanRecord, lasting_values, state_placement

Bytes = NDArray[np.int64]


def kept_bytes(old: Sequence[SpreadState], new: Sequence[SpreadState], count: int, joined: int) -> Bytes:
    """Return, by new rank (of `joined`) and old rank (of `count`), the needed bytes that the old rank has."""
    sources = {value.name: value for value in old}
    total = np.zeros((joined, count), np.int64)
    overlaps: dict[tuple[int, int], Bytes] = {}
    for value in new:
        if (source := sources.get(value.name)) is None:
            continue
        # Values with the same shape and sharding share one `boxes` object.
        key = id(source.boxes), id(value.boxes)
        if key not in overlaps:
            overlaps[key] = _overlaps(source.boxes, value.boxes, count, joined)
        total += overlaps[key] * value.element
    return total


def _overlaps(old: Mapping[int, Box], new: Mapping[int, Box], count: int, joined: int) -> Bytes:
    """Return, by new and old rank, the number of elements of a value that both have."""
    elements = np.zeros((joined, count), np.int64)
    volumes: dict[tuple[Box, Box], int] = {}
    for rank, needed in new.items():
        for other, box in old.items():
            if (pair := (needed, box)) not in volumes:
                sides = (min(p[1], q[1]) - max(p[0], q[0]) for p, q in zip(needed, box, strict=True))
                volumes[pair] = math.prod(max(0, side) for side in sides)
            elements[rank, other] = volumes[pair]
    return elements


def best_ranks(kept: Bytes, allowed: NDArray[np.bool_]) -> dict[int, int]:
    """
    Return, by new rank, the old rank whose process takes it, so that most bytes are kept: an assignment problem.

    The assignment has as many pairs as possible, and prefers pairs of equal ranks among equally good ones.

    Args:
        kept: by new and old rank, the bytes that would stay.
        allowed: the possible pairs; ranks on the same host and device kind are interchangeable.
    """
    from ortools.graph.python.linear_sum_assignment import SimpleLinearSumAssignment

    joined, count = kept.shape
    new, old = np.nonzero(allowed)
    gains = 4 * kept[new, old] + np.where(new == old, 2, 1)
    ranks, others = np.arange(joined), np.arange(count)
    # Each new rank has a column for the case that it gets no process, and each old rank a row for the case that it
    # leaves. If two ranks are matched, then so are the extra row of the old rank and the extra column of the new one.
    rows = np.concatenate([new, ranks, joined + others, joined + old])
    columns = np.concatenate([old, count + ranks, others, count + new])
    costs = np.zeros(len(rows), np.int64)
    costs[: len(new)] = -gains
    problem: Any = SimpleLinearSumAssignment()
    problem.add_arcs_with_cost(rows, columns, costs)
    status = problem.solve()
    assert status == problem.OPTIMAL, "the assignment without any match is always feasible"
    mates = ((rank, problem.right_mate(rank)) for rank in range(joined))
    return {rank: mate for rank, mate in mates if mate < count}


def exchangeable(old: Cluster, new: Cluster) -> NDArray[np.bool_]:
    """Return, by new and old rank, whether a process can take the place: same device kind, same host."""
    before = [(old.device(rank), old.host(rank)) for rank in range(old.mesh.device_count)]
    after = [(new.device(rank), new.host(rank)) for rank in range(new.mesh.device_count)]
    return np.array([[mine == other for other in before] for mine in after], bool)


class OtherStepError(ValueError):
    """An error that reports that the old plan belongs to another step, with the first value that differs."""


@dataclass(frozen=True)
class Transition:
    """
    The moves of state from an old plan to a new one.

    Args:
        before: by new rank, the old rank of the same process.
        state: the bytes of parameters, states and buffers, each counted once.
        least: lower bound on the bytes that processes need and do not have, over all assignments of processes to ranks
            that devices and hosts allow; the requested order may move more.
    """

    moves: Moves
    before: Mapping[int, int]
    state: int
    least: int

    def report(self) -> dict[str, object]:
        """Return the entries of the transition in `plan.json`: sizes in bytes."""
        moves = self.moves
        lost = [{"value": name, "rank": rank, "box": [list(dim) for dim in box]} for name, rank, box in moves.lost]
        return {
            "kept_ranks": {str(new): old for new, old in self.before.items()},
            "state_bytes": self.state,
            "moved_bytes": moves.bytes,
            "lost_bytes": moves.bound - moves.bytes,
            "moved_bytes_bound": self.least,
            "kept_bytes": moves.kept,
            "lost": lost,
        }


@dataclass(frozen=True)
class Replanned:
    """A plan that was derived from an old plan, and the moves of state from the old plan to the new one."""

    step: CompiledStep
    state: Transition


def replan(
    undecided: ModuleOp,
    old: PlanRecord,
    cluster: Cluster,
    remaining: Sequence[int] | None = None,
    *,
    processes: int = 1,
) -> Replanned:
    """
    Plan the step for other devices, starting from an existing plan.

    The result is the old strategy on a similar mesh if that fits, which moves little state; otherwise a search decides.

    Args:
        undecided: the step before any decision (`global.mlir`); it is modified.
        remaining: the old ranks that remain, in the order of the new ones. By default as many ranks remain as possible,
            assigned to new ranks so that the fewest bytes are moved, on the same kinds of devices and the same hosts.
        processes: as in `PlanOptions`.

    Raises:
        OtherStepError: the old plan belongs to another step.
        ValueError: a remaining rank did not exist in the old plan.
        PassError: no plan fits the cluster.
    """
    _verify_same_step({name: (shape, element) for name, shape, element in lasting_values(undecided)}, old)
    # Check before planning that all remaining ranks existed.
    kept_ranks(old.cluster.mesh.device_count, cluster.mesh.device_count, remaining)
    # `prepare` has already run on the step.
    candidate = old.candidate and _among(old.candidate, old.cluster, cluster)
    search = SearchPlanPass(candidate=json.dumps(candidate), adapt=True)
    options = PlanOptions(pipeline=Pipeline.of(search, "finish"), processes=processes)
    made = lower(undecided, cluster, options, name=old.name, step_spec=old.step, seconds={})
    state = transition(old, made.module, cluster, remaining)
    return Replanned(replace(made, report={**made.report, "replan": {"adapted": True, **state.report()}}), state)


def _among(candidate: CandidateRecord, was: Cluster, cluster: Cluster) -> CandidateRecord:
    """
    Return a candidate with the ranks of `cluster` that it uses, if it leaves devices idle.

    The ranks have the kinds of devices that it used: all devices of a kind without idle ones, and at most as many as
    before of another kind.
    """
    if "ranks" not in candidate:
        return candidate
    before, count = candidate["ranks"], cluster.mesh.device_count
    used = Counter(was.device(rank) for rank in before)
    idle = {was.device(rank) for rank in range(was.mesh.device_count) if rank not in before}
    most = Counter({device: number if device in idle else count for device, number in used.items()})
    chosen: list[int] = []
    for rank in range(count):
        if most[device := cluster.device(rank)] > 0:
            most[device] -= 1
            chosen.append(rank)
    stay = all(rank < count and cluster.device(rank) == was.device(rank) for rank in before)
    ranks = before if stay and len(before) == len(chosen) else chosen
    moved: CandidateRecord = {**candidate, "ranks": ranks}
    if len(ranks) in (0, count):
        del moved["ranks"]
    return moved


def transition(
    old: PlanRecord, module: ModuleOp, cluster: Cluster, remaining: Sequence[int] | None = None
) -> Transition:
    """
    Return the moves of state from an old plan to a new one.

    Args:
        module: the new plan, for `cluster`.
        remaining: as in `replan`.

    Raises:
        OtherStepError: the old plan belongs to another step.
        ValueError: a remaining rank did not exist in the old plan.
    """
    new = state_placement(module)
    _verify_same_step({spread.name: (spread.shape, spread.element) for spread in new}, old)
    given = kept_ranks(old.cluster.mesh.device_count, cluster.mesh.device_count, remaining)
    best = _renumbered(old.state, new, old.cluster, cluster, given, remaining)
    before = best if remaining is None else given
    moves = state_moves(old.state, new, before)
    least = moves.bound if before == best else min(moves.bound, state_moves(old.state, new, best).bound)
    return Transition(moves, before, sum(math.prod(each.shape) * each.element for each in old.state), least)


_Shapes = Mapping[str, tuple[tuple[int, ...], int]]
"""The shape of each value and the bytes of an element, by the value's name."""


def _verify_same_step(step: _Shapes, old: PlanRecord) -> None:
    """Raise OtherStepError unless a plan and a step have the same parameters, states and buffers."""
    had = {spread.name: (spread.shape, spread.element) for spread in old.state}
    for name in (*step, *had):
        if step.get(name) != had.get(name):
            details = f"it has {_text(had, name)}, but the step has {_text(step, name)}"
            raise OtherStepError(f"the old plan belongs to another step: {details}")


def _text(values: _Shapes, name: str) -> str:
    if name not in values:
        return f"no {name!r}"
    shape, element = values[name]
    return f"{name!r} of {list(shape)}, {element} bytes each"


def _renumbered(
    old: Sequence[SpreadState],
    new: Sequence[SpreadState],
    was: Cluster,
    cluster: Cluster,
    given: dict[int, int],
    remaining: Sequence[int] | None,
) -> dict[int, int]:
    """Return, by new rank, the old rank in the assignment with the least moves; `given` if it keeps more processes."""
    allowed = exchangeable(was, cluster)
    if remaining is not None:
        allowed[:, [rank for rank in range(allowed.shape[1]) if rank not in set(remaining)]] = False
    assignment = best_ranks(kept_bytes(old, new, was.mesh.device_count, cluster.mesh.device_count), allowed)
    return assignment if len(assignment) >= len(given) else given
