"""Planning again, from the IR of a plan, for a changed cluster: another number of devices, or other devices."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp

from ..ir.cluster import Cluster
from ..ir.state_moves import Moves, SpreadState, kept_ranks, state_moves
from ..passes.pipeline import Pipeline
from ..passes.search_plan import SearchPlanPass
from .compile import CompiledStep, PlanOptions, lower
from .plan_record import PlanRecord
from .rank_placement import best_ranks, exchangeable, kept_bytes
from .state_placement import lasting_values, state_placement


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
    search = SearchPlanPass(candidate=json.dumps(old.candidate), adapt=True)
    options = PlanOptions(pipeline=Pipeline.of(search, "finish"), processes=processes)
    made = lower(undecided, cluster, options, name=old.name, step_spec=old.step, seconds={})
    state = transition(old, made.module, cluster, remaining)
    return Replanned(replace(made, report={**made.report, "replan": {"adapted": True, **state.report()}}), state)


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
