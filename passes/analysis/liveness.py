"""
Liveness and reuse of memory in a straight-line program: its buffers, the ops during which it needs them, and the ops
that may write a result into the memory of an operand.

Values are any hashable objects and ops are *events* in order; this module does not depend on the IR, so a program can
be measured before it is written. Only `live_buffers` decides about reuse: the pass `reuse-buffers` records its answers,
and `check-memory` and the search count memory by them.

A value *owns* its memory if an op allocated the memory for this value alone. A view shares the memory of its operand,
and an argument's memory belongs to the caller. A result may take over the memory of an operand if nothing reads that
memory afterwards, under any name. Memory that two values may share on some ranks counts twice and is treated as shared.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.int64]
"""Bytes, one number for each rank."""


class Definition(NamedTuple):
    """
    A value that an op produces.

    Args:
        begin, end: indices of the first and the last event that need its memory at least; by default its own event.
        view_of: value whose memory it shares, or None if it has its own memory.
        over: value whose memory it may take over if nothing else needs that memory any more.
        over_view: whether it may do so even if `over` is a view.
        decided: whether it does so, if the program says, or None if the analysis decides.
        in_place: whether it then lies in that memory; otherwise the memory is only free for other values.
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


class Event(NamedTuple):
    """
    The use of memory by one op.

    Args:
        reads: the operands, each with the index of the event that needs it last, or None for this event.
        is_update: whether its results may also take over memory of arguments that the program replaces.
        all_or_none: whether its results take over memory only if all results that may do so can.
    """

    reads: tuple[tuple[Hashable, int | None], ...]
    makes: tuple[Definition, ...]
    is_update: bool = False
    all_or_none: bool = False


@dataclass
class Buffer:
    """A piece of memory, the value it was allocated for, and the indices of the first and last event that need it."""

    value: Hashable
    first: int
    last: int
    is_argument: bool = False

    def is_held(self, index: int) -> bool:
        """Return whether the memory is held during the event of `index`; arguments always hold theirs."""
        return self.is_argument or self.first <= index <= self.last


@dataclass(frozen=True)
class Buffers:
    """
    The memory of a program.

    Args:
        listed: one buffer for each argument, and for each result that needs its own memory.
        taken_over: values that take over the memory of their `Definition.over`.
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
    Return the buffers of a program, and the values that take over the memory of others.

    Args:
        arguments: values whose memory belongs to the caller.
        replaced: arguments whose new value the program returns, so that an update may overwrite them; by default all.
        kept: other values that nothing may overwrite.
    """
    return _Walk(events, list(arguments), replaced, kept).buffers()


@dataclass(eq=False)
class _Memory:
    """
    Memory that several values may share.

    Args:
        values: values that may use the memory.
        is_borrowed: whether it may be memory of an argument that must not change.
    """

    values: list[Hashable] = field(default_factory=list[Hashable])
    is_borrowed: bool = False


class _Walk:
    """One walk over the events of a program; an instance is used once."""

    def __init__(
        self,
        events: Sequence[Event],
        arguments: Sequence[Hashable],
        replaced: Container[Hashable] | None,
        kept: Iterable[Hashable],
    ) -> None:
        self.events = events
        # The last event that reads a value, and the last event that needs it.
        self.last_read: dict[Hashable, int] = {}
        self.last_needed: dict[Hashable, int] = {}
        for index, event in enumerate(events):
            for value, end in event.reads:
                self.last_read[value] = index
                self.last_needed[value] = max(self.last_needed.get(value, 0), index if end is None else end)
        self.last_read |= dict.fromkeys(kept, len(events))
        self.listed = [Buffer(value, 0, self.last_needed.get(value, 0), is_argument=True) for value in arguments]
        self.buffer: dict[Hashable, Buffer] = {buffer.value: buffer for buffer in self.listed}
        self.memory = {
            value: _Memory([value], is_borrowed=replaced is not None and value not in replaced) for value in arguments
        }
        self.owners: set[Hashable] = set()
        # Arguments and the values that updates wrote over them. Each has separate memory, although a collective that
        # sends several of them merges the records of their memory.
        self.separate: set[Hashable] = set(arguments)
        # The last event until whose end an earlier event needs a value.
        self.in_use: dict[Hashable, int] = {}
        self.taken_over: set[Hashable] = set()

    def buffers(self) -> Buffers:
        """Walk over the events and return the buffers."""
        for index, event in enumerate(self.events):
            if event.makes:
                self._enter(index, event, self._taken_by(index, event))
            for value, end in event.reads:
                if end is not None and end > index:
                    self.in_use[value] = max(self.in_use.get(value, -1), end)
        return Buffers(tuple(self.listed), frozenset(self.taken_over))

    def _taken_by(self, index: int, event: Event) -> set[Hashable]:
        """Return the results of an event that take over memory."""
        wanted = [result for result in event.makes if result.over is not None]
        if not wanted:
            return set()
        taken = {
            result.value
            for result in wanted
            if (self._is_free(index, event, result) if result.decided is None else result.decided)
        }
        return set() if event.all_or_none and len(taken) < len(wanted) else taken

    def _is_free(self, index: int, event: Event, made: Definition) -> bool:
        """Return whether only this event, and only once, reads the memory of `made.over` from here on."""
        over = made.over
        if not (event.is_update or over in self.owners or (made.over_view and not self.buffer[over].is_argument)):
            return False
        memory = self.memory[over]
        if memory.is_borrowed or sum(value == over for value, _ in event.reads) > 1:
            return False
        if self.last_read.get(over, -1) > index or self.in_use.get(over, -1) >= index:
            return False
        memory.values = [value for value in memory.values if value == over or self._is_alive(value, index)]
        others = [value for value in memory.values if value != over]
        return not others or (over in self.separate and self.separate.issuperset(others))

    def _is_alive(self, value: Hashable, index: int) -> bool:
        return self.last_read.get(value, -1) >= index or self.in_use.get(value, -1) >= index

    def _enter(self, index: int, event: Event, taken: set[Hashable]) -> None:
        """Record the memory of each result."""
        for result in event.makes:
            shares = result.may_share if result.view_of is None else (result.view_of, *result.may_share)
            takes = result.value in taken
            if result.view_of is not None:
                buffer = self.buffer[result.view_of]
            elif takes and result.in_place:
                buffer = self.buffer[result.over]
            else:
                buffer = Buffer(result.value, index if result.begin is None else result.begin, index)
                self.listed.append(buffer)
            end = index if result.end is None else result.end
            buffer.last = max(buffer.last, end, self.last_needed.get(result.value, index))
            self.buffer[result.value] = buffer
            if end > index:
                self.in_use[result.value] = end
            if shares:
                memory = self._merged(shares)
            else:
                memory = self.memory[result.over] if takes else _Memory()
                self.owners.add(result.value)
            memory.values.append(result.value)
            self.memory[result.value] = memory
            if takes:
                self.taken_over.add(result.value)
                if event.is_update and result.over in self.separate:
                    self.separate.add(result.value)

    def _merged(self, shared: Sequence[Hashable]) -> _Memory:
        """Merge several memories that can no longer be distinguished into one."""
        first = self.memory[shared[0]]
        for value in shared[1:]:
            other = self.memory[value]
            if other is not first:
                first.values += other.values
                first.is_borrowed |= other.is_borrowed
                self.memory.update(dict.fromkeys(other.values, first))
        return first


def in_blocks(held: Bytes, blocks: Sequence[float]) -> Bytes:
    """Round bytes up to the blocks of each rank's allocator; without blocks, return them unchanged."""
    if not blocks:
        return held
    size = np.asarray(blocks, np.int64)
    return -(-held // size) * size


def bytes_over_time(buffers: Sequence[Buffer], events: int, ranks: int, size: Callable[[Hashable], Bytes]) -> Bytes:
    """Return the bytes held during each of `events` events (rows) on each of `ranks` ranks (columns)."""
    change = np.zeros((events + 2, ranks), np.int64)
    held = np.array([size(buffer.value) for buffer in buffers], np.int64).reshape(len(buffers), ranks)
    np.add.at(change, [buffer.first for buffer in buffers], held)
    np.subtract.at(change, [-1 if buffer.is_argument else buffer.last + 1 for buffer in buffers], held)
    return change.cumsum(axis=0)[:events]
