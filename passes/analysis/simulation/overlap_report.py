"""
How much of a step's communication runs beside computation.

With C the times in which the compute stream of a rank works, and M those in which traffic is under way:

    overlapped = |C and M|,  exposed = |M| - |C and M|,  ratio = |C and M| / min(|C|, |M|)    `Overlap`

Source: HiDup 6.6, where the ratio is that of table 4. Traffic on several channels at a time counts once in a sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .names import category
from .results import Simulation

Span = tuple[float, float]
"""Begin and end, in seconds from the begin of the step."""

ALL = "all"
"""The row of all phases, or of all channels."""


@dataclass(frozen=True)
class Overlap:
    """
    What a rank computes and communicates, in seconds.

    Args:
        compute: in which its compute stream works.
        communication: in which traffic is under way.
        overlapped: in which both is so.
    """

    compute: float
    communication: float
    overlapped: float

    @property
    def exposed(self) -> float:
        """Seconds of communication in which the rank does not compute."""
        return self.communication - self.overlapped

    @property
    def ratio(self) -> float:
        """Overlapped seconds of all that could be; 1 where there is nothing to overlap."""
        least = min(self.compute, self.communication)
        return self.overlapped / least if least else 1.0


def overlaps(simulation: Simulation, number: int) -> Mapping[tuple[str, str], Overlap]:
    """
    Of a class of ranks, the overlap by phase (`forward`, `backward`, `update`, `all`) and channel (its axes or stages,
    `all`); the phase is that of what is sent, beside whatever is computed then.
    """
    computed: defaultdict[str, list[Span]] = defaultdict(list)
    for run in simulation.ops(number):
        for phase in (category(run.op), ALL):
            computed[phase].append((run.start, run.end))
    sent: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
    for run in simulation.traffic(number):
        for phase in (category(run.traffic.op), ALL):
            for channel in (run.channel.name, ALL):
                sent[phase, channel].append((run.start, run.end))
    whole = merged(computed[ALL])
    found: dict[tuple[str, str], Overlap] = {}
    for (phase, channel), spans in sorted(sent.items(), key=_place):
        busy = merged(spans)
        found[phase, channel] = Overlap(length(merged(computed[phase])), length(busy), length(common(whole, busy)))
    return found


_PHASES = ("forward", "backward", "update", ALL)


def _place(item: tuple[tuple[str, str], object]) -> tuple[int, bool, str]:
    """Where a row stands: by phase, and the sum over channels last."""
    (phase, channel), _ = item
    return _PHASES.index(phase), channel == ALL, channel


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


def length(spans: Iterable[Span]) -> float:
    """Of spans apart from one another, the seconds."""
    return sum(end - begin for begin, end in spans)
