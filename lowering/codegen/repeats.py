"""
Ranges of a sequence that occur again and again, such as the equal layers of a step: those that are worth a function.

A range of `length` items that occurs `count` times saves `(count - 1) * length` items when it is written once, and
costs `count` calls and a head. The greedy search takes the range that saves most (`_ranked`), then the best in what is
left, as long as any saves enough. Equal ranges are found by polynomial hashes of all windows of one length, those of
the next length coming from those of this one: `h' = h * base + next item` (Karp and Rabin, 1987).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

_BASE = np.uint64(0x9E3779B97F4A7C15)
_CALL, _HEAD = 4, 10
"""What a call, and what begins and ends a function, cost, in items."""

_WHOLE = 1.5
"""How many times the items that it saves a full layer counts: what is left of it otherwise takes calls too."""

_SHORTEST, _LEAST = 6, 8
"""Items of a function, and items that it has to save."""

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_Rank = tuple[float, int, int, int]
"""Minus what windows are worth, minus whether they begin well, the first start, and the length."""

_NOTHING: _Rank = (-float(_LEAST), 0, 0, 0)
"""What is not worth a function."""


@dataclass(frozen=True)
class _Windows:
    """Ranges of one length that look equal and do not overlap; `key` is their hash."""

    length: int
    starts: tuple[int, ...]
    key: int

    @property
    def saved(self) -> int:
        return _saved(self.length, len(self.starts))


def _saved(length: int, count: int) -> int:
    return (count - 1) * length - count * _CALL - _HEAD


def repeated_ranges(
    items: Sequence[int | None],
    begins: Sequence[bool],
    ends: Sequence[int],
    alike: Callable[[Sequence[range]], Sequence[range]],
) -> list[Sequence[range]]:
    """
    The ranges that are worth a function, each with all its occurrences in order; none of them overlap.

    Args:
        items: of the sequence, by the class of items that are alike; None for what can be in no range.
        begins: whether a range should rather begin here than elsewhere, where both save as much.
        ends: for each item, up to where a range may go that begins there.
        alike: of ranges of items that are alike, those that are equal in every item.
    """
    left = np.array([_alone(i) if item is None else item for i, item in enumerate(items)], dtype=np.uint64)
    lengths = np.array(ends) - np.arange(len(items))
    found: list[Sequence[range]] = []
    refused = set[tuple[int, int]]()
    while (equal := _taken(_ranked(left, begins, lengths), alike, refused)) is not None:
        found.append(equal)
        for each in equal:
            left[each.start : each.stop] = [_alone(i) for i in each]
    return found


def _taken(
    ranked: Iterator[_Windows], alike: Callable[[Sequence[range]], Sequence[range]], refused: set[tuple[int, int]]
) -> Sequence[range] | None:
    """
    The equal ranges of the first windows that have enough of them.

    Args:
        refused: lengths and keys of windows that have not; these are added to it.
    """
    for windows in ranked:
        if (windows.length, windows.key) in refused:
            continue
        equal = alike([range(start, start + windows.length) for start in windows.starts])
        if _saved(windows.length, len(equal)) >= _LEAST:
            return equal
        refused.add((windows.length, windows.key))
    return None


def _alone(index: int) -> int:
    """An item that is like no other; classes are small numbers."""
    return (1 << 32) + index


def _ranked(items: Hashes, begins: Sequence[bool], lengths: Places) -> Iterator[_Windows]:
    """
    Yield the windows that are worth most first; of those that are worth as much, such as begin well, then the first,
    then the shortest.
    """
    groups = list(_alike(items, lengths))
    # How far windows overlap is looked at only when none is left that could save more.
    heap = [(_bound(group), index, False) for index, group in enumerate(groups)]
    heapq.heapify(heap)
    while heap:
        _, index, is_exact = heapq.heappop(heap)
        if is_exact:
            yield groups[index].apart
        elif (rank := _rank(groups[index].apart, begins, lengths)) < _NOTHING:
            heapq.heappush(heap, (rank, index, True))


@dataclass(frozen=True)
class _Alike:
    """All ranges of one length that look equal, overlapping ones too."""

    length: int
    starts: Places
    key: int

    @cached_property
    def apart(self) -> _Windows:
        """Those that do not overlap with the one before."""
        return _Windows(self.length, _apart(self.starts.tolist(), self.length), self.key)


def _alike(items: Hashes, lengths: Places) -> Iterator[_Alike]:
    """Yield the ranges that look equal, length by length, that may save enough."""
    hashes = np.zeros(len(items) + 1, dtype=np.uint64)
    for length in range(1, int(lengths.max(initial=0)) + 1):
        hashes = hashes[:-1] * _BASE + items[length - 1 :]
        if length < _SHORTEST:
            continue
        starts = np.flatnonzero(lengths[: len(hashes)] >= length)
        order = starts[np.argsort(hashes[starts], kind="stable")]
        edges = np.flatnonzero(np.diff(hashes[order])) + 1
        bounds = np.concatenate(([0], edges, [len(order)]))
        counts = np.diff(bounds)
        if counts.max(initial=0) <= 1:
            break
        for at in np.flatnonzero(_saved_each(length, counts) * _WHOLE >= _LEAST):
            places = order[bounds[at] : bounds[at + 1]]
            yield _Alike(length, places, int(hashes[places[0]]))


def _bound(group: _Alike) -> _Rank:
    """A rank that is no worse than that of the windows of a group that do not overlap."""
    return -_saved(group.length, len(group.starts)) * _WHOLE, -1, 0, group.length


def _rank(windows: _Windows, begins: Sequence[bool], lengths: Places) -> _Rank:
    """What comes first is worth most."""
    start, *others = windows.starts
    # What comes before the first layer may be of none, so that it begins there.
    well = begins[start] or any(begins[other] for other in others[:1])
    whole = well and windows.length == lengths[start]
    return -(windows.saved * _WHOLE if whole else windows.saved), -int(well), start, windows.length


def _saved_each(length: int, counts: Places) -> Places:
    return (counts - 1) * length - counts * _CALL - _HEAD


def _apart(starts: Iterable[int], length: int) -> tuple[int, ...]:
    """The first of some windows, and then each that does not overlap with the one before."""
    found: list[int] = []
    for start in starts:
        if not found or start >= found[-1] + length:
            found.append(start)
    return tuple(found)
