"""The results of a simulation: how long a step takes, on which streams, and what is waited for."""

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
    Ranks that do the same.

    Args:
        number: among all classes.
        column: among those of its place.
        ranks: of the job.
        members: the same ranks, of the mesh of the place.
    """

    number: int
    column: int
    place: Place
    ranks: tuple[int, ...]
    members: tuple[int, ...]

    @property
    def stage(self) -> int | None:
        """The stage of a pipeline."""
        return self.place.stage

    @property
    def device(self) -> Device:
        """Its kind of device."""
        return self.place.cluster.device(self.members[0])


@dataclass(frozen=True)
class OpRun:
    """An op on a compute stream, in seconds from the begin of the step; `part` is that of the loop."""

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
        classes = [each.number for each in self.classes]
        working = [number for number in classes if next(self.spans(number), None) is not None] or classes
        ends = (entry.end for number in working for entry in self.execution.entries[number])
        idle = set(classes).difference(working)
        arrivals = (run.end for run in self.execution.traffic if not idle.issuperset(run.traffic.ends[-1].numbers))
        return max((*ends, *arrivals), default=0.0)

    def compute_seconds(self, number: int) -> float:
        """How long the compute stream of a class works."""
        return sum(run.end - run.start for run in self.spans(number))

    def exposed_seconds(self, number: int) -> float:
        """How long the compute stream of a class does not, for it waits for others or is done."""
        return self.seconds - self.compute_seconds(number)

    def busy_seconds(self, number: int) -> Mapping[str, float]:
        """By stream of a class, how long it is busy; a channel is called after its axes or stages."""
        found: defaultdict[str, float] = defaultdict(float, {COMPUTE: self.compute_seconds(number)})
        for run in self.traffic(number):
            found[run.channel.name] += run.end - run.start
        return found

    def sent_bytes(self, number: int) -> Mapping[str, float]:
        """By kind of traffic, what each rank of a class sends; of transfers, the rank that sends most."""
        found: defaultdict[str, float] = defaultdict(float)
        for run in self.traffic(number):
            traffic = run.traffic
            if len(traffic.ends) == 1 or number in traffic.ends[0].numbers:
                found[traffic.kind] += traffic.sent
        return found

    def waited(self, number: int) -> Mapping[Traffic, float]:
        """How long the compute stream of a class waits for each collective or transfer, largest first."""
        found: defaultdict[Traffic, float] = defaultdict(float)
        for entry in self.execution.entries[number]:
            if isinstance(entry, WaitRun):
                found[entry.run.traffic] += entry.end - entry.start
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def busiest(self, stage: int | None) -> RankClass:
        """The class of a stage that computes longest."""
        return max((each for each in self.classes if each.stage == stage), key=lambda c: self.compute_seconds(c.number))

    def spans(self, number: int) -> Iterator[SpanRun]:
        """What the compute stream of a class works on, in order."""
        return (entry for entry in self.execution.entries[number] if isinstance(entry, SpanRun))

    def traffic(self, number: int) -> list[TrafficRun]:
        """What a class takes part in, by its begin."""
        return self._traffic.get(number, [])

    @cached_property
    def _traffic(self) -> dict[int, list[TrafficRun]]:
        found: dict[int, list[TrafficRun]] = {}
        for run in self.execution.traffic:
            for number in run.channel.members:
                found.setdefault(number, []).append(run)
        return found

    def ops(self, number: int) -> Iterator[OpRun]:
        """The ops on the compute stream of a class, in order."""
        column = self.classes[number].column
        for run in self.spans(number):
            yield from ops_of(run, column)


COMPUTE = "compute"
"""The name of the compute stream."""


def ops_of(run: SpanRun, column: int) -> Iterator[OpRun]:
    """The ops of a span: each ends when so much of the span is done."""
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
    How a step is spent, in seconds.

    Args:
        seconds: of all step functions, one after the other.
        compute: of these, those in which the rank works that computes longest.
    """

    seconds: float
    compute: float

    @property
    def exposed(self) -> float:
        """Seconds in which that rank does not compute."""
        return self.seconds - self.compute


def time_spent(simulations: Sequence[Simulation]) -> TimeSpent:
    """How the simulated step functions of a module are spent."""
    compute = (max(found.compute_seconds(each.number) for each in found.classes) for found in simulations)
    return TimeSpent(sum(found.seconds for found in simulations), sum(compute))
