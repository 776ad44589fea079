"""
Liveness and reuse of memory in a straight-line program: which buffers it needs, during which of its ops, and which op
may write a result into the memory of an operand.

Values are any hashable objects, ops are *events* in order; this module knows no IR. So a program can be measured
before it is written. `live_buffers` is the one place that decides about reuse: the pass `reuse-buffers` writes down
what it answers, `check-memory` and the search count by it.

A value *owns* its memory where an op made that memory for it alone. A view shares the memory of its operand, and that
of an argument is the caller's. A result may take over the memory of an operand where nothing reads that memory, under
any name, afterwards. Memory that two values may share on some ranks counts twice and is treated as shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.int64]
"""Bytes by rank."""


@dataclass(frozen=True)
class Definition:
    """
    A value that an op makes.

    Args:
        begin, end: the indices of the events between which it has memory at least; by default its own.
        view_of: the value whose memory it shares; None where it has memory of its own.
        over: the value whose memory it may take over, where nothing else needs that any more.
        over_view: whether it may do so where `over` is a view.
        decided: whether it does, where that is written in the program; None leaves it to the analysis.
        in_place: whether it lies in that memory then; otherwise the memory is only free for others.
        may_share: values whose memory it may share on some ranks.
    """

    value: Hashable
    begin: int | None = None
    end: int | None = None
    view_of: Hashable | None = None
    over: Hashable | None = None
    over_view: bool = False
    decided: bool | None = None
    in_place: bool = True
    may_share: tuple[Hashable, ...] = ()


@dataclass(frozen=True)
class Event:
    """
    What one op does with memory.

    Args:
        reads: each operand, with the index of the event until whose end it is needed; None for this one.
        is_update: whether its results may take over memory of arguments that the program replaces, too.
        all_or_none: whether its results take over memory only if all of them that may do.
    """

    reads: tuple[tuple[Hashable, int | None], ...]
    makes: tuple[Definition, ...]
    is_update: bool = False
    all_or_none: bool = False


@dataclass
class Buffer:
    """A piece of memory: the value it was made for, and the indices of the first and last event that need it."""

    value: Hashable
    first: int
    last: int
    is_argument: bool = False

    def is_held(self, index: int) -> bool:
        """Whether the memory is held during the event of `index`; that of an argument always is."""
        return self.is_argument or self.first <= index <= self.last


@dataclass(frozen=True)
class Buffers:
    """
    The memory of a program.

    Args:
        listed: one buffer per argument, and per result that needs its own.
        taken_over: the values that take over the memory of their `Definition.over`.
    """

    listed: tuple[Buffer, ...]
    taken_over: frozenset[Hashable]


def live_buffers(
    events: Sequence[Event],
    arguments: Iterable[Hashable],
    replaced: Container[Hashable] | None = None,
    kept: Iterable[Hashable] = (),
) -> Buffers:
    """
    The memory that a program uses, and what takes over that of what.

    Args:
        arguments: the values whose memory is the caller's.
        replaced: those of them whose new value the program returns, so that an update may write over them; by default
            all.
        kept: values that nothing may write over, besides arguments that are not replaced.
    """
    return _Walk(events, list(arguments), replaced, kept).buffers()


@dataclass(eq=False)
class _Memory:
    """
    Memory that several values may share.

    Args:
        values: those that may look at it.
        is_borrowed: whether it may be memory of an argument that must not change.
    """

    values: list[Hashable] = field(default_factory=list[Hashable])
    is_borrowed: bool = False


class _Walk:
    """One walk over the events of a program; one use."""

    def __init__(
        self,
        events: Sequence[Event],
        arguments: Sequence[Hashable],
        replaced: Container[Hashable] | None,
        kept: Iterable[Hashable],
    ) -> None:
        self.events = events
        # By value: the last event that reads it, and the last event during which it is needed.
        self.last_read: dict[Hashable, int] = {}
        self.last_needed: dict[Hashable, int] = {}
        for index, event in enumerate(events):
            for value, end in event.reads:
                self.last_read[value] = index
                self.last_needed[value] = max(self.last_needed.get(value, 0), index if end is None else end)
        self.last_read |= dict.fromkeys(kept, len(events))
        self.listed = [Buffer(each, 0, self.last_needed.get(each, 0), is_argument=True) for each in arguments]
        self.buffer: dict[Hashable, Buffer] = {each.value: each for each in self.listed}
        self.memory = {
            each: _Memory([each], is_borrowed=replaced is not None and each not in replaced) for each in arguments
        }
        self.owners: set[Hashable] = set()
        # Arguments, and what updates wrote over them: each has memory of its own, although a collective that sends
        # several of them merges what is known of their memory.
        self.separate: set[Hashable] = set(arguments)
        # By value, the last event during which an earlier event needs it.
        self.in_use: dict[Hashable, int] = {}
        self.taken_over: set[Hashable] = set()

    def buffers(self) -> Buffers:
        """Go through the events."""
        for index, event in enumerate(self.events):
            if event.makes:
                self._enter(index, event, self._taken_by(index, event))
            for value, end in event.reads:
                if end is not None and end > index:
                    self.in_use[value] = max(self.in_use.get(value, -1), end)
        return Buffers(tuple(self.listed), frozenset(self.taken_over))

    def _taken_by(self, index: int, event: Event) -> set[Hashable]:
        """The results of an event that take over memory."""
        wanted = [made for made in event.makes if made.over is not None]
        if not wanted:
            return set()
        reads = Counter(value for value, _ in event.reads)
        taken = {
            made.value
            for made in wanted
            if (self._is_free(index, event, made, reads) if made.decided is None else made.decided)
        }
        return set() if event.all_or_none and len(taken) < len(wanted) else taken

    def _is_free(self, index: int, event: Event, made: Definition, reads: Mapping[Hashable, int]) -> bool:
        """Whether nothing but this event, once, reads the memory of `made.over` from here on."""
        over = made.over
        if not (event.is_update or over in self.owners or (made.over_view and not self.buffer[over].is_argument)):
            return False
        memory = self.memory[over]
        if memory.is_borrowed or reads[over] > 1:
            return False
        if self.last_read.get(over, -1) > index or self.in_use.get(over, -1) >= index:
            return False
        memory.values = [each for each in memory.values if each == over or self._is_alive(each, index)]
        others = [each for each in memory.values if each != over]
        return not others or (over in self.separate and self.separate.issuperset(others))

    def _is_alive(self, value: Hashable, index: int) -> bool:
        return self.last_read.get(value, -1) >= index or self.in_use.get(value, -1) >= index

    def _enter(self, index: int, event: Event, taken: set[Hashable]) -> None:
        """Note which memory each result has."""
        for made in event.makes:
            shares = made.may_share if made.view_of is None else (made.view_of, *made.may_share)
            takes = made.value in taken
            if made.view_of is not None:
                buffer = self.buffer[made.view_of]
            elif takes and made.in_place:
                buffer = self.buffer[made.over]
            else:
                buffer = Buffer(made.value, index if made.begin is None else made.begin, index)
                self.listed.append(buffer)
            end = index if made.end is None else made.end
            buffer.last = max(buffer.last, end, self.last_needed.get(made.value, index))
            self.buffer[made.value] = buffer
            if end > index:
                self.in_use[made.value] = end
            if shares:
                memory = self._merged(shares)
            else:
                memory = self.memory[made.over] if takes else _Memory()
                self.owners.add(made.value)
            memory.values.append(made.value)
            self.memory[made.value] = memory
            if takes:
                self.taken_over.add(made.value)
                if event.is_update and made.over in self.separate:
                    self.separate.add(made.value)

    def _merged(self, shared: Sequence[Hashable]) -> _Memory:
        """One memory out of several that can no longer be distinguished."""
        first = self.memory[shared[0]]
        for value in shared[1:]:
            other = self.memory[value]
            if other is not first:
                first.values += other.values
                first.is_borrowed |= other.is_borrowed
                self.memory.update(dict.fromkeys(other.values, first))
        return first


def in_blocks(held: Bytes, blocks: Sequence[float]) -> Bytes:
    """Bytes by rank as allocators give them, in multiples of a block; without blocks as they are."""
    if not blocks:
        return held
    size = np.asarray(blocks, np.int64)
    return -(-held // size) * size


def bytes_over_time(buffers: Sequence[Buffer], events: int, ranks: int, size: Callable[[Hashable], Bytes]) -> Bytes:
    """The bytes held during each of `events` events (rows) on each of `ranks` ranks (columns)."""
    change = np.zeros((events + 2, ranks), np.int64)
    for buffer in buffers:
        held = size(buffer.value)
        change[buffer.first] += held
        change[-1 if buffer.is_argument else buffer.last + 1] -= held
    return change.cumsum(axis=0)[:events]
