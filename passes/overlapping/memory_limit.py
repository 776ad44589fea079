"""Shortening of collectives where memory is short: reductions are waited for earlier, and gathers start later."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import Operation

from ...dialects.pipe import FragmentOp
from ...dialects.spmd import StartOp, TokenType
from ...dialects.step import sharding_of
from ...ir.cluster import Cluster
from ...ir.collectives import CollectiveKind
from ..analysis.compute import local_bytes
from ..analysis.liveness import Buffer
from ..analysis.memory import MemoryUse, memory_use
from ..step.step_view import StepView
from .waits import is_reduction, move_before, wait_of

_COPIES = 3
"""Largest number of copies of a value at a time: itself, and two in a reduce-scatter."""


def keep_within(view: StepView, cluster: Cluster, limits: Sequence[float]) -> bool:
    """
    Move starts and waits of collectives in a scheduled step where a rank would hold more bytes than its limit.

    In front of an op with too little memory, the oldest reduce-scatters in flight are waited for until memory suffices,
    because a wait frees the operands. Gathers in flight where memory is still short start after that op. Elsewhere
    nothing changes. Returns whether the step was within the limits before.
    """
    if _surely_fits(view, cluster, min(limits)):
        return True
    use = memory_use(view.func, cluster.mesh, view.stage, cluster.blocks)
    least = np.full(use.held.shape[1], np.inf)
    np.minimum.at(least, use.columns, limits)
    if not (use.held > least).any():
        return True
    plan = _HalfMover(use, least)
    plan.wait_earlier()
    plan.start_later()
    return False


def _surely_fits(view: StepView, cluster: Cluster, limit: float) -> bool:
    """Return whether all values together, with copies in collectives, are within the limit: a quick sufficient test."""
    mesh, block = cluster.mesh, view.func.body.block
    if view.stage is not None or any(isinstance(op, FragmentOp) for op in block.ops):
        return False
    values = (*block.args, *(value for op in block.ops for value in op.results))
    held = (local_bytes(value, sharding_of(value), mesh) for value in values if not isinstance(value.type, TokenType))
    return _COPIES * sum(held) <= limit


@dataclass(frozen=True)
class _Flight:
    """A collective in flight: its start op, and the events of its start and its wait."""

    op: StartOp
    start: int
    wait: int


class _HalfMover:
    """
    A pass over a step that moves starts and waits, and updates the memory held; used once.

    Args:
        limits: the lowest limit of each class of ranks in `use`.
    """

    def __init__(self, use: MemoryUse, limits: np.typing.NDArray[np.float64]) -> None:
        self.use, self.limits = use, limits
        self.ops, self.held = use.run.ops, use.held.copy()
        index = {op: event for event, op in enumerate(self.ops)}
        starts = (op for op in self.ops if isinstance(op, StartOp))
        self.flights = [_Flight(op, index[op], index[wait_of(op)]) for op in starts]
        self.moved: set[Operation] = set()
        self.first: defaultdict[int, list[Buffer]] = defaultdict(list)
        self.last: defaultdict[int, list[Buffer]] = defaultdict(list)
        for buffer in use.buffers:
            if not buffer.is_argument:
                self.first[buffer.first].append(buffer)
                self.last[buffer.last].append(buffer)

    def wait_earlier(self) -> None:
        """Wait for the oldest reductions in flight before each event with too little memory, until memory suffices."""
        pending = deque(flight for flight in self.flights if is_reduction(flight.op))
        for event in range(len(self.ops)):
            while pending and pending[0].start < event and self._is_short(event):
                if (flight := pending.popleft()).wait > event:
                    self._move(wait_of(flight.op), event)
                    self._hold(self.last[flight.wait], range(event, flight.wait + 1), -1)
                    self._hold(self.first[flight.wait], range(event, flight.wait), 1)

    def start_later(self) -> None:
        for flight in self.flights:
            short = [event for event in range(flight.start, flight.wait) if self._is_short(event)]
            if short and flight.op.collective is CollectiveKind.ALL_GATHER:
                self._move(flight.op, short[-1] + 1)
                self._hold(self.first[flight.start], range(flight.start, short[-1] + 1), -1)

    def _is_short(self, event: int) -> bool:
        return bool((self.held[event] > self.limits).any())

    def _hold(self, buffers: Iterable[Buffer], events: range, times: int) -> None:
        for buffer in buffers:
            self.held[events.start : events.stop] += times * self.use.size(buffer.value)

    def _move(self, half: Operation, event: int) -> None:
        """Move a start or wait before the op of an event, or before the first op after it that has not been moved."""
        block = half.parent_block()
        assert block is not None
        before = next(op for op in self.ops[event:] if op not in self.moved)
        place = block.find_ancestor_op_in_block(before)
        assert place is not None, "a collective starts and ends in one block"
        if place is not half:
            move_before(half, place)
            self.moved.add(half)
