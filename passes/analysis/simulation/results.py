"""The results of a simulation: the seconds of a step, the use of its streams, and its waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ....ir.cluster import Device
from .engine import Execution, SpanRun, TrafficRun, WaitRun
from .network import Traffic
from .places import Place


@dataclass(frozen=True)
class RankClass:
    """
    Ranks that behave the same.

    Args:
        number: number of the class, among all classes.
        column: index of the class, among the classes of its place.
        ranks: its ranks, numbered in the job.
        members: the same ranks, numbered in the mesh of the place.
    """

    number: int
    column: int
    place: Place
    ranks: tuple[int, ...]
    members: tuple[int, ...]

    @property
    def stage(self) -> int | None:
        """Return the stage of a pipeline, or None."""
        return self.place.stage

    @property
    def device(self) -> Device:
        """Return the kind of device of the ranks."""
        return self.place.cluster.device(self.members[0])


@dataclass(frozen=True)
class OpRun:
    """An op on a compute stream, in seconds from the begin of the step; `part` is the part of the loop."""

    op: Operation
    part: int
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """One simulated step."""

    func: FuncOp
    classes: tuple[RankClass, ...]
    execution: Execution

    @cached_property
    def seconds(self) -> float:
        """
        Return the seconds from the begin of the step until all ranks that compute have ended, and all that they receive
        has arrived. The next step does not wait for ranks that only receive its loss.
        """
        classes = [rank_class.number for rank_class in self.classes]
        working = [number for number in classes if next(self.spans(number), None) is not None] or classes
        ends = (entry.end for number in working for entry in self.execution.entries[number])
        idle = set(classes).difference(working)
        arrivals = (run.end for run in self.execution.traffic if not idle.issuperset(run.traffic.ends[-1].numbers))
        return max((*ends, *arrivals), default=0.0)

    def compute_seconds(self, number: int) -> float:
        """Return the seconds that the compute stream of a class works."""
        return sum(run.end - run.start for run in self.spans(number))

    def exposed_seconds(self, number: int) -> float:
        """Return the seconds that the compute stream of a class is idle, because it waits or has ended."""
        return self.seconds - self.compute_seconds(number)

    def busy_seconds(self, number: int) -> Mapping[str, float]:
        """Return the busy seconds of each stream of a class; a channel is named after its axes or stages."""
        seconds: defaultdict[str, float] = defaultdict(float, {COMPUTE: self.compute_seconds(number)})
        for run in self.traffic(number):
            seconds[run.channel.name] += run.end - run.start
        return seconds

    def sent_bytes(self, number: int) -> Mapping[str, float]:
        """Return the bytes that each rank of a class sends, by kind of traffic; for transfers, the busiest rank's."""
        sent: defaultdict[str, float] = defaultdict(float)
        for run in self.traffic(number):
            traffic = run.traffic
            if len(traffic.ends) == 1 or number in traffic.ends[0].numbers:
                sent[traffic.kind] += traffic.sent
        return sent

    def waited(self, number: int) -> Mapping[Traffic, float]:
        """Return the seconds that a class's compute stream waits for each collective or transfer, largest first."""
        waits: defaultdict[Traffic, float] = defaultdict(float)
        for entry in self.execution.entries[number]:
            if isinstance(entry, WaitRun):
                waits[entry.run.traffic] += entry.end - entry.start
        return dict(sorted(waits.items(), key=lambda pair: -pair[1]))

    def busiest(self, stage: int | None) -> RankClass:
        """Return the class of a stage that computes longest."""
        return max((each for each in self.classes if each.stage == stage), key=lambda c: self.compute_seconds(c.number))

    def spans(self, number: int) -> Iterator[SpanRun]:
        """Return the spans on the compute stream of a class, in order."""
        return (entry for entry in self.execution.entries[number] if isinstance(entry, SpanRun))

    def traffic(self, number: int) -> list[TrafficRun]:
        """Return the traffic that a class takes part in, in the order of begins."""
        return self._traffic.get(number, [])

    @cached_property
    def _traffic(self) -> dict[int, list[TrafficRun]]:
        by_class: dict[int, list[TrafficRun]] = {}
        for run in self.execution.traffic:
            for number in run.channel.members:
                by_class.setdefault(number, []).append(run)
        return by_class

    def ops(self, number: int) -> Iterator[OpRun]:
        """Yield the ops on the compute stream of a class, in order."""
        column = self.classes[number].column
        for run in self.spans(number):
            yield from ops_of(run, column)


COMPUTE = "compute"
"""The name of the compute stream."""


def ops_of(run: SpanRun, column: int) -> Iterator[OpRun]:
    """Yield the ops of a span: each ends when the span has progressed to the op's end."""
    start, progress, at = run.start, run.progress, 1
    for op, done in zip(run.span.ops, run.span.ends[column], strict=True):
        while at < len(progress) - 1 and progress[at][1] < done:
            at += 1
        (begin, before), (end, after) = progress[at - 1], progress[at]
        time = begin + (end - begin) * (done - before) / (after - before) if after > before else end
        if time > start:
            yield OpRun(op, run.part, start, time)
        start = max(start, time)


@dataclass(frozen=True)
class TimeSpent:
    """
    The seconds of a step, and how they are spent.

    Args:
        seconds: seconds of all step functions, one after the other.
        compute: the seconds that the busiest rank of each function computes.
    """

    seconds: float
    compute: float

    @property
    def exposed(self) -> float:
        """Return the seconds while this rank does not compute."""
        return self.seconds - self.compute


def time_spent(simulations: Sequence[Simulation]) -> TimeSpent:
    """Return how the simulated step functions of a module spend their time."""
    compute = (max(run.compute_seconds(each.number) for each in run.classes) for run in simulations)
    return TimeSpent(sum(run.seconds for run in simulations), sum(compute))
