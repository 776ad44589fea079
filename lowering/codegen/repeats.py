"""
Find repeated ranges of a sequence, such as the equal layers of a step, that are worth a function.

A range of `length` items that occurs `count` times saves `(count - 1) * length` items when it is written once, and
costs `count` calls and a head. The greedy search takes the range that saves most (`_ranked`), and repeats this on the
remaining items while a range saves enough. Equal ranges have equal polynomial hashes. The hashes of all windows of one
length give the hashes of the next length: `h' = h * base + next item` (Karp and Rabin, 1987).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

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
    """
    All ranges of one length with the same hash, including overlapping ranges.

    Args:
        key: the hash.
    """

    length: int
    starts: Places
    key: int

    @cached_property
    def apart(self) -> list[range]:
        """The ranges that do not overlap with the previous one, beginning with the first."""
        ranges: list[range] = []
        for start in self.starts.tolist():
            if not ranges or start >= ranges[-1].stop:
                ranges.append(range(start, start + self.length))
        return ranges

    @property
    def bound(self) -> _Rank:
        """A lower bound on the rank, from the number of all ranges."""
        return -_saved(self.length, len(self.starts)) * _WHOLE, -1, 0, self.length

    def rank(self, begins: Sequence[bool], lengths: Places) -> _Rank:
        """Return the rank of the ranges that do not overlap."""
        first, *others = self.apart
        # Ops before the first layer may have no layer, so the first range may begin there; the second then begins well.
        well = begins[first.start] or any(begins[other.start] for other in others[:1])
        saved = _saved(self.length, len(self.apart))
        whole = well and self.length == lengths[first.start]
        return -(saved * _WHOLE if whole else saved), -int(well), first.start, self.length


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
    while True:
        for windows in _ranked(left, begins, lengths):
            if (windows.length, windows.key) not in refused:
                equal = alike(windows.apart)
                if _saved(windows.length, len(equal)) >= _LEAST:
                    break
                refused.add((windows.length, windows.key))
        else:
            return result
        result.append(equal)
        for each in equal:
            left[each.start : each.stop] = [_alone(i) for i in each]


def _alone(index: int) -> int:
    """Return a unique item; classes are smaller numbers."""
    return (1 << 32) + index


def _ranked(items: Hashes, begins: Sequence[bool], lengths: Places) -> Iterator[_Windows]:
    """
    Yield windows in order of decreasing worth; ties go to a preferred begin, then to the first start, then to the
    shortest windows.
    """
    groups = list(_equal_windows(items, lengths))
    # The exact rank, which excludes overlapping windows, is computed only when the bound of a group is the best left.
    heap = [(group.bound, index, False) for index, group in enumerate(groups)]
    heapq.heapify(heap)
    while heap:
        _, index, is_exact = heapq.heappop(heap)
        if is_exact:
            yield groups[index]
        elif (rank := groups[index].rank(begins, lengths)) < _NOTHING:
            heapq.heappush(heap, (rank, index, True))


def _equal_windows(items: Hashes, lengths: Places) -> Iterator[_Windows]:
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
        enough = next(number for number in count(2) if _saved(length, number) * _WHOLE >= _LEAST)
        for at in np.flatnonzero(counts >= enough):
            places = order[bounds[at] : bounds[at + 1]]
            yield _Windows(length, places, int(hashes[places[0]]))
