"""
Overlap of a step's communication with its computation, in a simulated or a measured step.

Let C be the times when a rank computes, and M the times when its traffic is in flight:

    overlapped = |C and M|,  exposed = |M| - |C and M|,  ratio = |C and M| / min(|C|, |M|)    `Overlap`

Source: HiDup 6.6; table 4 shows this ratio. Simultaneous traffic on several channels counts once in a sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

Span: TypeAlias = tuple[float, float]
"""Begin and end, in seconds."""

ALL = "all"
"""The row of all phases, or of all channels."""

PHASES = ("forward", "backward", "update")

Overlaps: TypeAlias = "Mapping[tuple[str, str], Overlap]"
"""Overlaps by phase and channel (its axes or stages); both may be `all`."""


@dataclass(frozen=True)
class Overlap:
    """
    The computation and communication of a rank, in seconds.

    Args:
        compute: computation of the phase.
        communication: time with traffic of the phase in flight.
        overlapped: the part of this time during computation of any phase.
        beside: computation of all phases, which could hide traffic, or None for `compute`.
    """

    compute: float
    communication: float
    overlapped: float
    beside: float | None = field(default=None, compare=False)

    @property
    def exposed(self) -> float:
        """Seconds of communication without simultaneous computation."""
        return self.communication - self.overlapped

    @property
    def ratio(self) -> float:
        """Overlapped seconds as a fraction of the possible overlap; 1 if nothing can overlap."""
        least = min(self.compute if self.beside is None else self.beside, self.communication)
        return self.overlapped / least if least else 1.0


def overlap_of(computed: Mapping[str, Iterable[Span]], sent: Iterable[tuple[str, str, Span]]) -> Overlaps:
    """
    Return the overlap of one rank by phase and channel, in the order of a table.

    Args:
        computed: times of computation by phase.
        sent: traffic: its phase, its channel and its span.
    """
    by_row: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
    for phase, channel, span in sent:
        for row in ((phase, channel), (phase, ALL), (ALL, channel), (ALL, ALL)):
            by_row[row].append(span)
    by_phase = {phase: merged(spans) for phase, spans in computed.items()}
    whole = merged(chain.from_iterable(by_phase.values()))
    by_phase[ALL] = whole
    overlaps: dict[tuple[str, str], Overlap] = {}
    for (phase, channel), spans in sorted(by_row.items(), key=_place):
        busy = merged(spans)
        seconds = length(by_phase.get(phase, ()))
        overlaps[phase, channel] = Overlap(seconds, length(busy), length(common(whole, busy)), length(whole))
    return overlaps


def _place(item: tuple[tuple[str, str], object]) -> tuple[int, bool, str]:
    """Return the sort key of a row: by phase, with the sum over channels last."""
    (phase, channel), _ = item
    return (*PHASES, ALL).index(phase), channel == ALL, channel


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans, as disjoint spans in order."""
    union: list[Span] = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        elif end > begin:
            union.append((begin, end))
    return union


def common(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """Return the intersection of two lists of disjoint spans in order."""
    intersection: list[Span] = []
    at = there = 0
    while at < len(one) and there < len(other):
        begin, end = max(one[at][0], other[there][0]), min(one[at][1], other[there][1])
        if begin < end:
            intersection.append((begin, end))
        if one[at][1] < other[there][1]:
            at += 1
        else:
            there += 1
    return intersection


def without(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """Return the times of the first list outside of the second; both hold disjoint spans in order."""
    rest: list[Span] = []
    for begin, end in spans:
        for start, stop in taken:
            if stop <= begin or start >= end:
                continue
            if start > begin:
                rest.append((begin, start))
            begin = stop
        if begin < end:
            rest.append((begin, end))
    return rest


def length(spans: Iterable[Span]) -> float:
    """Return the total seconds of disjoint spans."""
    return sum(end - begin for begin, end in spans)
