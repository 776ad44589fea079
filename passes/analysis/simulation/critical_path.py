"""Find the critical path of a step: the chain of ops and collectives that each waited for the previous one."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xdsl.ir import Operation

from .engine import SpanRun, TrafficRun
from .results import Simulation, ops_of


@dataclass(frozen=True)
class Piece:
    """A part of the path: ops or traffic, with its start and end in seconds."""

    what: SpanRun | TrafficRun
    start: float
    end: float


def critical_path(simulation: Simulation) -> list[Piece]:
    """
    Return the critical path from the begin of a step to its end.

    Each piece ends when the next begins, so that together they take as long as the step. A span begins when its stream
    has finished earlier work; traffic begins when its last participant issues it, or when its channel is free.
    """
    return list(reversed(list(_backwards(simulation))))


def _backwards(simulation: Simulation) -> Iterator[Piece]:
    execution, time = simulation.execution, simulation.seconds
    ends = [[entry.end for entry in entries] for entries in execution.entries]
    number = next((n for n, mine in enumerate(ends) if mine and mine[-1] == time), None)
    run = next((run for run in execution.traffic if run.end == time), None) if number is None else None
    while time > 0.0:
        if run is None:
            assert number is not None
            entry = execution.entries[number][bisect_right(ends[number], time) - 1]
            if isinstance(entry, SpanRun):
                yield Piece(entry, entry.start, time)
                time = entry.start
                continue
            run = entry.run
        yield Piece(run, run.start, time)
        time = run.start
        number = max(run.issued, key=run.issued.__getitem__)
        run = run.before if run.issued[number] < time else None


def seconds_by_op(simulation: Simulation, path: list[Piece]) -> Mapping[Operation, float]:
    """Return the seconds of a path that each op takes, the largest first."""
    seconds: defaultdict[Operation, float] = defaultdict(float)
    for piece in path:
        if isinstance(piece.what, TrafficRun):
            seconds[piece.what.traffic.op] += piece.end - piece.start
        else:
            for run in ops_of(piece.what, simulation.classes[piece.what.number].column):
                seconds[run.op] += run.end - run.start
    return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))
