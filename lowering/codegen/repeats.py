"""
Find repeated ranges of a sequence, such as the equal layers of a step, that are worth a function.

A range of `length` items that occurs `count` times saves `(count - 1) * length` items when it is written once, and
costs `count` calls and a head. The greedy search takes the range that saves most (`_ranked`), and repeats this on the
remaining items while a range saves enough. Equal ranges have equal polynomial hashes. The hashes of all windows of one
length give the hashes of the next length: `h' = h * base + next item` (Karp and Rabin, 1987).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

_BASE = np.uint64(0x9E3779B97F4A7C15)
_CALL, _HEAD = 3, 8
"""The cost of a call, and of the head and end of a function, in items."""

_WHOLE = 1.5
"""The factor on the savings of a full layer, since the rest of a partial layer would need further calls."""

_SHORTEST, _LEAST = 4, 8
"""The least number of items of a function, and the least number of items that it must save."""

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_Rank = tuple[float, int, int, int]
"""The negated worth of windows, the negated flag of a preferred begin, the first start, and the length."""

_NOTHING: _Rank = (-float(_LEAST), 0, 0, 0)
"""The rank of windows that are barely worth a function."""


@dataclass(frozen=True)
class _Windows:
    """Disjoint ranges of one length with the same hash `key`."""

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
    Return the disjoint ranges that are worth a function, each with all its occurrences in order.

    Args:
        items: class of each item of the sequence, or None for an item that must be outside of all ranges.
        begins: for each item, whether a range preferably begins there, among ranges with equal savings.
        ends: for each item, the latest end of a range that begins there.
        alike: function that selects equal ranges from ranges whose items have the same classes.
    """
    left = np.array([_alone(i) if item is None else item for i, item in enumerate(items)], dtype=np.uint64)
    lengths = np.array(ends) - np.arange(len(items))
    result: list[Sequence[range]] = []
    refused = set[tuple[int, int]]()
    while (equal := _taken(_ranked(left, begins, lengths), alike, refused)) is not None:
        result.append(equal)
        for each in equal:
            left[each.start : each.stop] = [_alone(i) for i in each]
    return result


def _taken(
    ranked: Iterator[_Windows], alike: Callable[[Sequence[range]], Sequence[range]], refused: set[tuple[int, int]]
) -> Sequence[range] | None:
    """
    Return the equal ranges of the first windows that save enough.

    Args:
        refused: (length, key) of windows that do not save enough; further such windows are added.
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
    """Return a unique item; classes are smaller numbers."""
    return (1 << 32) + index


def _ranked(items: Hashes, begins: Sequence[bool], lengths: Places) -> Iterator[_Windows]:
    """
    Yield windows in order of decreasing worth; ties go to a preferred begin, then to the first start, then to the
    shortest windows.
    """
    groups = list(_alike(items, lengths))
    # The exact rank, which excludes overlapping windows, is computed only when the bound of a group is the best left.
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
    """All ranges of one length with the same hash, including overlapping ranges."""

    length: int
    starts: Places
    key: int

    @cached_property
    def apart(self) -> _Windows:
        """The ranges that do not overlap with the previous range."""
        return _Windows(self.length, _apart(self.starts.tolist(), self.length), self.key)


def _alike(items: Hashes, lengths: Places) -> Iterator[_Alike]:
    """Yield groups of ranges with the same hash that may save enough, by increasing length."""
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
    """Return a lower bound on the rank of the disjoint windows of a group."""
    return -_saved(group.length, len(group.starts)) * _WHOLE, -1, 0, group.length


def _rank(windows: _Windows, begins: Sequence[bool], lengths: Places) -> _Rank:
    start, *others = windows.starts
    # Ops before the first layer may have no layer, so the first range may begin there; the second then begins well.
    well = begins[start] or any(begins[other] for other in others[:1])
    whole = well and windows.length == lengths[start]
    return -(windows.saved * _WHOLE if whole else windows.saved), -int(well), start, windows.length


def _saved_each(length: int, counts: Places) -> Places:
    return (counts - 1) * length - counts * _CALL - _HEAD


def _apart(starts: Iterable[int], length: int) -> tuple[int, ...]:
    """Return the starts of the windows that do not overlap with the previous one, beginning with the first."""
    disjoint: list[int] = []
    for start in starts:
        if not disjoint or start >= disjoint[-1] + length:
            disjoint.append(start)
    return tuple(disjoint)
