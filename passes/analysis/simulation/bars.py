"""The bars of a timeline: what each stream of a class of ranks does from when to when, with equal neighbours joined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from xdsl.ir import Operation

from .engine import WaitRun
from .names import category, op_name
from .results import COMPUTE, RankClass, Simulation


@dataclass(frozen=True)
class TimelineBar:
    """
    Work on a stream, in seconds from the begin of the step.

    Args:
        kind: phase of the ops, or kind of the traffic.
        label: name of the work in the user's model.
        count: number of joined ops.
        sent: bytes that a rank sends.
        waited: seconds that the compute stream waits for it.
    """

    kind: str
    start: float
    end: float
    label: str = ""
    count: int = 1
    sent: float = 0.0
    waited: float = 0.0


def bars_of(
    simulation: Simulation, each: RankClass, label: Callable[[Operation], str] = op_name, gap: float = 0.0
) -> Mapping[str, list[TimelineBar]]:
    """
    Return the bars of each stream of a class; consecutive ops of one kind and label are one bar.

    Args:
        label: name of an op on the compute stream.
        gap: seconds between two ops of the compute stream that may still be one bar.
    """
    computed = (TimelineBar(category(run.op), run.start, run.end, label(run.op)) for run in simulation.ops(each.number))
    bars = {COMPUTE: list(joined(computed, gap))}
    entries = simulation.execution.entries[each.number]
    waited = {entry.run: entry.end - entry.start for entry in entries if isinstance(entry, WaitRun)}
    for run in simulation.traffic(each.number):
        name, sent = op_name(run.traffic.op), run.traffic.sent
        bar = TimelineBar(run.traffic.kind, run.start, run.end, name, sent=sent, waited=waited.get(run, 0.0))
        bars.setdefault(run.channel.name, []).append(bar)
    return bars


def joined(bars: Iterable[TimelineBar], gap: float = 0.0) -> Iterator[TimelineBar]:
    """Join consecutive bars of one kind and label, because a picture with a bar for each op would be large."""
    pending: TimelineBar | None = None
    for bar in bars:
        if pending is not None:
            if (pending.kind, pending.label) == (bar.kind, bar.label) and bar.start <= pending.end + gap:
                bar = _union(pending, bar)
            else:
                yield pending
        pending = bar
    if pending is not None:
        yield pending


def _union(first: TimelineBar, second: TimelineBar) -> TimelineBar:
    return TimelineBar(
        first.kind,
        first.start,
        max(first.end, second.end),
        first.label,
        first.count + second.count,
        first.sent + second.sent,
        first.waited + second.waited,
    )
