"""
How much of a step's communication runs beside computation, of a simulated step or of a measured one.

With C the times in which a rank computes, and M those in which its traffic is under way:

    overlapped = |C and M|,  exposed = |M| - |C and M|,  ratio = |C and M| / min(|C|, |M|)    `Overlap`

Source: HiDup 6.6, where the ratio is that of table 4. Traffic on several channels at a time counts once in a sum.
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
"""By phase and channel (its axes or stages), each of which may be `all`."""


@dataclass(frozen=True)
class Overlap:
    """
    What a rank computes and communicates, in seconds.

    Args:
        compute: in which it computes, in the phase.
        communication: in which traffic of the phase is under way.
        overlapped: in which that is so while it computes, whatever the phase of that.
        beside: in which it computes in all phases, so that traffic could be beside it; None for `compute`.
    """

    compute: float
    communication: float
    overlapped: float
    beside: float | None = field(default=None, compare=False)

    @property
    def exposed(self) -> float:
        """Seconds of communication in which the rank does not compute."""
        return self.communication - self.overlapped

    @property
    def ratio(self) -> float:
        """Overlapped seconds of all that could be; 1 where there is nothing to overlap."""
        least = min(self.compute if self.beside is None else self.beside, self.communication)
        return self.overlapped / least if least else 1.0


def overlap_of(computed: Mapping[str, Iterable[Span]], sent: Iterable[tuple[str, str, Span]]) -> Overlaps:
    """
    The overlap of one rank by phase and channel, in the order of a table.

    Args:
        computed: when it computes, by phase.
        sent: when traffic is under way: its phase, its channel and its span.
    """
    by_row: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
    for phase, channel, span in sent:
        for row in ((phase, channel), (phase, ALL), (ALL, channel), (ALL, ALL)):
            by_row[row].append(span)
    by_phase = {phase: merged(spans) for phase, spans in computed.items()}
    whole = merged(chain.from_iterable(by_phase.values()))
    by_phase[ALL] = whole
    found: dict[tuple[str, str], Overlap] = {}
    for (phase, channel), spans in sorted(by_row.items(), key=_place):
        busy = merged(spans)
        seconds = length(by_phase.get(phase, ()))
        found[phase, channel] = Overlap(seconds, length(busy), length(common(whole, busy)), length(whole))
    return found


def _place(item: tuple[tuple[str, str], object]) -> tuple[int, bool, str]:
    """Where a row stands: by phase, and the sum over channels last."""
    (phase, channel), _ = item
    return (*PHASES, ALL).index(phase), channel == ALL, channel


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same times as spans apart from one another, in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > begin:
            found.append((begin, end))
    return found


def common(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """The times that are in both, of which each is in order and apart."""
    found: list[Span] = []
    at = there = 0
    while at < len(one) and there < len(other):
        begin, end = max(one[at][0], other[there][0]), min(one[at][1], other[there][1])
        if begin < end:
            found.append((begin, end))
        if one[at][1] < other[there][1]:
            at += 1
        else:
            there += 1
    return found


def without(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """The times of the first that are not in the second, of which each is in order and apart."""
    found: list[Span] = []
    for begin, end in spans:
        for start, stop in taken:
            if stop <= begin or start >= end:
                continue
            if start > begin:
                found.append((begin, start))
            begin = stop
        if begin < end:
            found.append((begin, end))
    return found


def length(spans: Iterable[Span]) -> float:
    """Of spans apart from one another, the seconds."""
    return sum(end - begin for begin, end in spans)
