"""
Liveness: which pieces of memory a straight-line program needs, and during which of its ops it needs them.

Values are any hashable objects, ops are *events* in order; this module knows no IR. So what a pass will write can be
measured before it is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.int64]
"""Bytes by rank."""


@dataclass(frozen=True)
class Made:
    """
    A value that an op gives.

    Args:
        begin, end: the indices of the events between which it has memory at least; by default its own.
        view_of: what it looks at; None where it has memory of its own.
        over: what it may be written over, where nothing else needs that any more.
    """

    value: Hashable
    begin: int | None = None
    end: int | None = None
    view_of: Hashable | None = None
    over: Hashable | None = None


@dataclass(frozen=True)
class Event:
    """
    What one op does with memory.

    Args:
        reads: each operand, with the index of the event until whose end it is needed; None for this one.
        over_arguments: whether it may write over arguments too.
    """

    reads: tuple[tuple[Hashable, int | None], ...]
    makes: tuple[Made, ...]
    over_arguments: bool = False


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


def live_buffers(events: Sequence[Event], arguments: Iterable[Hashable]) -> list[Buffer]:
    """The memory that a program uses: one buffer per argument, and per result that needs its own."""
    last: dict[Hashable, int] = {}
    for index, event in enumerate(events):
        for value, end in event.reads:
            last[value] = max(last.get(value, 0), index if end is None else end)
    buffers = [Buffer(argument, 0, last.get(argument, 0), is_argument=True) for argument in arguments]
    found: dict[Hashable, Buffer] = {buffer.value: buffer for buffer in buffers}
    for index, event in enumerate(events):
        # Reads of one buffer; what an event makes it does not read.
        reads = Counter(id(found.get(value)) for value, _ in event.reads) if event.makes else _NO_READS
        for made in event.makes:
            end = index if made.end is None else made.end
            buffer = _reused(event, made, found, reads, max(index, end))
            if buffer is None:
                buffer = Buffer(made.value, index if made.begin is None else made.begin, index)
                buffers.append(buffer)
            buffer.last = max(buffer.last, end, last.get(made.value, index))
            found[made.value] = buffer
    return buffers


_NO_READS: Mapping[int, int] = {}


def _reused(
    event: Event, made: Made, found: dict[Hashable, Buffer], reads: Mapping[int, int], end: int
) -> Buffer | None:
    """
    The buffer in which a value lies that others lay in before; None where it needs one of its own.

    Args:
        reads: by identity of a buffer, how often the event reads it.
    """
    if made.view_of is not None:
        return found[made.view_of]
    if made.over is None:
        return None
    buffer = found[made.over]
    shared = reads.get(id(buffer), 0) > 1
    lent = buffer.is_argument and not event.over_arguments
    return None if shared or lent or buffer.last > end else buffer


def in_blocks(held: Bytes, blocks: Sequence[float]) -> Bytes:
    """Bytes by rank as allocators give them, in whole blocks of so many bytes; without blocks as they are."""
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
