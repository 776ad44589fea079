"""
A scheduled step without its times: the counts of its ops and collectives between transfers.

The simulator computes the times of a step once. A calibration or a sweep needs the times of one plan for many devices
and links: it takes the outline of the step, which `outline_seconds` evaluates in a millisecond. The result is exact if
all ranks of a stage do the same work and wait for every collective (as in a pipeline without `overlap`), and transfers
use separate ports.

`SlotRun` runs the slots of a pipeline for given seconds: a stage executes its slots in order, and a transfer begins
when both ends have started it and all earlier transfers between the same two stages are over. The simulator uses the
same rules, and in addition models contention.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from shardwright.dialects.pipe import Action, Slot
from shardwright.dialects.spmd import CollectiveOp
from shardwright.ir.cluster import Cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.op_cost import OpWork, op_seconds
from shardwright.ir.submesh import subcluster
from shardwright.passes.analysis.durations import CollectiveWork, communication_of
from shardwright.passes.analysis.simulation.costs import OpCosts
from shardwright.passes.analysis.simulation.network import TRANSFER, Traffic
from shardwright.passes.analysis.simulation.places import Place, divided
from shardwright.passes.analysis.simulation.programs import (
    End,
    Instruction,
    Issue,
    Program,
    Span,
    writers_of,
    written_programs,
)
from shardwright.passes.analysis.simulation.simulate import places_of
from shardwright.passes.stages.estimate import PartOf, PipelineTimes
from shardwright.passes.step.step_view import cluster_of_module, step_views


@dataclass(frozen=True)
class Stretch:
    """Consecutive ops and collectives, with the count of each."""

    works: tuple[tuple[OpWork, int], ...] = ()
    communications: tuple[tuple[CollectiveWork, int], ...] = ()


@dataclass(frozen=True)
class Crossing:
    """A transfer between stages; its edges are sending and receiving rank of the job, and the bytes of one part."""

    source: int
    target: int
    edges: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True)
class StageOutline:
    """
    A stage: its mesh, its first rank in the job, its stretches, and its slots in order.

    The label of a slot is the number of its transfer, or the numbers of the stage and of its stretch.
    """

    mesh: Mesh
    first: int
    stretches: tuple[Stretch, ...]
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class Outline:
    """The stages of a step (one if it has no pipeline), and the transfers between them."""

    stages: tuple[StageOutline, ...]
    crossings: tuple[Crossing, ...]


def outline_of(module: ModuleOp, func: FuncOp) -> Outline:
    """
    Return the outline of a scheduled step function.

    Raises ValueError if ranks of a stage have shards of different sizes, or if a collective overlaps other work.
    """
    clusters = [cluster for view, cluster in step_views(module) if view.func is func]
    divisions = divided(func, places_of(func, clusters, cluster_of_module(module)))
    if any(len(division.classes) > 1 for division in divisions):
        raise ValueError("the ranks of a stage differ: use the simulator, as an outline needs equal ranks")
    crossings: dict[Traffic, int] = {}
    programs = zip(divisions, written_programs(func, writers_of(func, divisions)), strict=True)
    stages = tuple(
        _Writer(number, division.place, crossings).stage(program) for number, (division, program) in enumerate(programs)
    )
    sent: list[Crossing] = []
    for traffic in crossings:
        source, target = (division.place.stage for division in traffic.ends)
        assert source is not None
        assert target is not None
        sent.append(Crossing(source, target, traffic.edges))
    return Outline(stages, tuple(sent))


class _Writer:
    """Writes the outline of one place. Equal stretches, such as the parts of a loop, share one entry."""

    def __init__(self, number: int, place: Place, crossings: dict[Traffic, int]) -> None:
        self.number, self.place, self.crossings = number, place, crossings
        self.costs = OpCosts(place.cluster, [0])
        self.numbers: dict[tuple[int, ...], int] = {}
        self.stretches: list[Stretch] = []
        self.slots: list[Slot] = []
        self.counts: Counter[tuple[Action, str]] = Counter()

    def stage(self, program: Program) -> StageOutline:
        pending: list[Instruction] = []
        for instruction, _ in program:
            if isinstance(instruction, Span | End) or instruction.traffic.kind != TRANSFER:
                pending.append(instruction)
                continue
            self._run(pending)
            pending = []
            number = self.crossings.setdefault(instruction.traffic, len(self.crossings))
            self._add(Action.START if isinstance(instruction, Issue) else Action.WAIT, str(number))
        self._run(pending)
        place = self.place
        return StageOutline(place.cluster.mesh, place.ranks[0], tuple(self.stretches), tuple(self.slots))

    def _add(self, action: Action, label: str) -> None:
        """Append a slot. Its part is the number of equal slots before."""
        self.slots.append(Slot(action, label, self.counts[action, label]))
        self.counts[action, label] += 1

    def _run(self, instructions: Sequence[Instruction]) -> None:
        if not instructions:
            return
        key = tuple(map(id, instructions))
        if key not in self.numbers:
            self.numbers[key] = len(self.stretches)
            self.stretches.append(self._stretch(instructions))
        self._add(Action.RUN, f"{self.number}.{self.numbers[key]}")

    def _stretch(self, instructions: Sequence[Instruction]) -> Stretch:
        works: Counter[OpWork] = Counter()
        communications: Counter[CollectiveWork] = Counter()
        sent = {instruction.traffic.op for instruction in instructions if isinstance(instruction, Issue)}
        for instruction in instructions:
            if isinstance(instruction, Span):
                works.update(work for op in instruction.ops if op not in sent for work in self.costs.works(op))
            elif isinstance(instruction, End):
                pass
            elif isinstance(op := instruction.traffic.op, CollectiveOp):
                if isinstance(instruction, Issue):
                    works.update((*self.costs.works(op), *self.costs.works_after(op)))
                    communications[communication_of(op, self.place.cluster.mesh)] += 1
            else:
                raise ValueError(f"{op.name} overlaps other work: use the simulator, as an outline has no overlap")
        return Stretch(tuple(works.items()), tuple(communications.items()))


def outline_seconds(outline: Outline, cluster: Cluster) -> float:
    """
    Return the seconds of a step on a cluster of all ranks, whose mesh has the axes of the stages' meshes.

    In a stage with several kinds of devices, the slowest kind determines the time of every stretch.
    """
    stages = [
        subcluster(cluster, stage.mesh, range(stage.first, stage.first + stage.mesh.device_count))
        for stage in outline.stages
    ]
    runs = {
        f"{number}.{at}": stretch_seconds(stretch, stage_cluster)
        for number, (stage, stage_cluster) in enumerate(zip(outline.stages, stages, strict=True))
        for at, stretch in enumerate(stage.stretches)
    }
    transfers = {str(at): _crossing_seconds(crossing, cluster) for at, crossing in enumerate(outline.crossings)}
    ends_of = {str(at): (crossing.source, crossing.target) for at, crossing in enumerate(outline.crossings)}
    estimated = SlotRun([stage.slots for stage in outline.stages], runs, transfers, ends_of).run()
    return max(estimated.stages) + max(device.overhead for device in cluster.kinds_used)


def stretch_seconds(stretch: Stretch, cluster: Cluster) -> float:
    """Return the seconds of a stretch on the slowest kind of device."""
    computing = max(
        sum(count * op_seconds(device, work) for work, count in stretch.works) for device in cluster.kinds_used
    )
    return computing + sum(count * each.seconds(cluster) for each, count in stretch.communications)


def _crossing_seconds(crossing: Crossing, cluster: Cluster) -> float:
    routes = [(cluster.route(sender, receiver), size) for sender, receiver, size in crossing.edges]
    busy: defaultdict[str, float] = defaultdict(float)
    for route, size in routes:
        for port in route.ports:
            busy[port] += size / route.bandwidth
    return max(route.latency for route, _ in routes) + max(busy.values(), default=0.0)


Ends = tuple[int, int]
"""The stages at both ends of a transfer."""


@dataclass(frozen=True)
class EstimatedRuns:
    """The times of runs in seconds from the begin of the first fragment, and the ends of stages."""

    begins: Mapping[PartOf, float]
    ends: Mapping[PartOf, float]
    stages: Sequence[float]

    @property
    def seconds(self) -> float:
        """Return the end of the last run."""
        return max(self.ends.values(), default=0.0)


def estimate(slots: Sequence[Sequence[Slot]], times: PipelineTimes) -> EstimatedRuns:
    """Return when each run begins and ends. Raises ValueError if stages deadlock."""
    stage_of = {work.label: work.stage for work in times.works}
    ends_of = {link.label: (stage_of[link.source], link.stage) for link in times.deliveries}
    return SlotRun(slots, times.runs, times.transfers, ends_of).run()


@dataclass
class _BusyChannel:
    """A channel between two stages: the end of its last transfer, and the start times of each part, in order."""

    free: float = 0.0
    begun: dict[PartOf, list[float]] = field(default_factory=dict[PartOf, list[float]])
    arrived: dict[PartOf, float] = field(default_factory=dict[PartOf, float])


class SlotRun:
    """
    Executes the slots of all stages, once, by the seconds of fragments and transfers and the stages at both ends of a
    transfer, all by label.
    """

    def __init__(
        self,
        slots: Sequence[Sequence[Slot]],
        runs: Mapping[str, float],
        transfers: Mapping[str, float],
        ends_of: Mapping[str, Ends],
    ) -> None:
        self._slots, self._runs, self._transfers = slots, runs, transfers
        channels: dict[Ends, _BusyChannel] = defaultdict(_BusyChannel)
        self._channel_of = {label: channels[ends] for label, ends in ends_of.items()}
        self._begins, self._ends = dict[PartOf, float](), dict[PartOf, float]()
        self._now, self._moved = [0.0] * len(slots), True

    def run(self) -> EstimatedRuns:
        """Return the times. Raises ValueError if the stages wait for one another."""
        active = [self._stage(stage) for stage in range(len(self._slots))]
        while active:
            blocked = [stage for stage in active if next(stage, None) is not None]
            if len(blocked) == len(active) and not self._moved:
                raise ValueError("the schedule deadlocks: its stages wait for one another")
            self._moved, active = False, blocked
        return EstimatedRuns(self._begins, self._ends, self._now)

    def _stage(self, stage: int) -> Iterator[int]:
        """Execute slots as far as possible, and yield whenever the stage has to wait."""
        now = 0.0
        for slot in self._slots[stage]:
            key = slot.label, slot.part
            match slot.action:
                case Action.RUN:
                    self._begins[key] = now
                    now = self._ends[key] = now + self._runs[slot.label]
                case Action.START:
                    self._start(key, now)
                case Action.WAIT:
                    while (arrival := self._channel_of[slot.label].arrived.get(key)) is None:
                        yield stage
                    now = max(now, arrival)
            self._moved, self._now[stage] = True, now

    def _start(self, key: PartOf, now: float) -> None:
        """Record a start, and send the parts that both ends have started, in the order of their first starts."""
        channel = self._channel_of[key[0]]
        channel.begun.setdefault(key, []).append(now)
        for part, starts in list(channel.begun.items()):
            if len(starts) < 2:
                return
            channel.free = max(channel.free, *starts) + self._transfers[part[0]]
            channel.arrived[part] = channel.free
            del channel.begun[part]
