"""Planning again, from the IR of a plan, for a cluster with other numbers or other devices."""

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
    """A plan that is of another step than the one that is planned again; the message says by what."""


@dataclass(frozen=True)
class Transition:
    """
    How the state of one plan becomes that of another.

    Args:
        before: by new rank, the old rank of the same process.
        state: the bytes of parameters, states and buffers, each counted once.
        least: the bytes that processes need and do not have at least, whichever ranks they take, as far as devices and
            hosts let them; in the order that is asked for they may be more.
    """

    moves: Moves
    before: Mapping[int, int]
    state: int
    least: int

    def report(self) -> dict[str, object]:
        """Its entries in `plan.json`: sizes in bytes."""
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
    """A plan that was made of another, and how the state of the one becomes that of the other."""

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
    A plan for other devices, begun from one that there is: its strategy on a mesh like its own, as long as that fits,
    so that the state stays where it is as far as it can; else what a search finds.

    Args:
        undecided: the step before any decision (`global.mlir`); it is changed.
        remaining: the old ranks that are left, in the order of the new ones; by default as many as there are, and which
            takes which place is decided so that the least is moved, on devices of their kind and hosts of their number.
        processes: as of `PlanOptions`.

    Raises:
        OtherStepError: the old plan is of another step.
        ValueError: a remaining rank that there was not.
        PassError: no plan fits the cluster.
    """
    _verify_same_step({name: (shape, element) for name, shape, element in lasting_values(undecided)}, old)
    # Before anything is planned: it may be one that there was not.
    kept_ranks(old.cluster.mesh.device_count, cluster.mesh.device_count, remaining)
    # The step has been through `prepare`.
    search = SearchPlanPass(candidate=json.dumps(old.candidate), adapt=True)
    options = PlanOptions(pipeline=Pipeline.of(search, "finish"), processes=processes)
    made = lower(undecided, cluster, options, name=old.name, step_spec=old.step, seconds={})
    state = transition(old, made.module, cluster, remaining)
    return Replanned(replace(made, report={**made.report, "replan": {"adapted": True, **state.report()}}), state)


def transition(
    old: PlanRecord, module: ModuleOp, cluster: Cluster, remaining: Sequence[int] | None = None
) -> Transition:
    """
    What has to be moved from an old plan to a new one.

    Args:
        module: the new plan, for `cluster`.
        remaining: as of `replan`.

    Raises:
        OtherStepError: the old plan is of another step.
        ValueError: a remaining rank that there was not.
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
"""By name of a value, its shape and the bytes of an element."""


def _verify_same_step(step: _Shapes, old: PlanRecord) -> None:
    """OtherStepError unless a plan has the values of a step that last, and no others."""
    had = {spread.name: (spread.shape, spread.element) for spread in old.state}
    for name in (*step, *had):
        if step.get(name) != had.get(name):
            details = f"it has {_text(had, name)}, the step {_text(step, name)}"
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
    """By new rank the old one of the least moves; as `given` where devices or hosts let fewer processes go on."""
    allowed = exchangeable(was, cluster)
    if remaining is not None:
        allowed[:, [rank for rank in range(allowed.shape[1]) if rank not in set(remaining)]] = False
    found = best_ranks(kept_bytes(old, new, was.mesh.device_count, cluster.mesh.device_count), allowed)
    return found if len(found) >= len(given) else given
