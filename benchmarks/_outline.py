"""
A scheduled step without its times: the counts of its ops and collectives between transfers.

The simulator computes the times of a step once. A calibration or a sweep needs the times of one plan for many devices
and links: it takes the outline of the step, which `outline_seconds` evaluates in a millisecond. The result is exact if
all ranks of a stage do the same work and wait for every collective (as in a pipeline without `overlap`), and transfers
use separate ports.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

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


Action: TypeAlias = tuple[Literal["run", "issue", "await"], int]
"""An action of a stage: run a stretch, issue a transfer, or wait for it. The number selects stretch or transfer."""


@dataclass(frozen=True)
class StageOutline:
    """A stage: its mesh, its first rank in the job, its stretches, and its actions in order."""

    mesh: Mesh
    first: int
    stretches: tuple[Stretch, ...]
    actions: tuple[Action, ...]


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
    stages = tuple(_Writer(division.place, crossings).stage(program) for division, program in programs)
    return Outline(stages, tuple(_crossing(each) for each in crossings))


def _crossing(traffic: Traffic) -> Crossing:
    source, target = (division.place.stage for division in traffic.ends)
    assert source is not None
    assert target is not None
    return Crossing(source, target, traffic.edges)


class _Writer:
    """Writes the outline of one place. Equal stretches, such as the parts of a loop, share one entry."""

    def __init__(self, place: Place, crossings: dict[Traffic, int]) -> None:
        self.place, self.crossings = place, crossings
        self.costs = OpCosts(place.cluster, [0])
        self.numbers: dict[tuple[int, ...], int] = {}
        self.stretches: list[Stretch] = []

    def stage(self, program: Program) -> StageOutline:
        """Return the outline of the place's program."""
        actions: list[Action] = []
        pending: list[Instruction] = []
        for instruction, _ in program:
            if isinstance(instruction, Span | End) or instruction.traffic.kind != TRANSFER:
                pending.append(instruction)
                continue
            actions += self._run(pending)
            pending = []
            number = self.crossings.setdefault(instruction.traffic, len(self.crossings))
            actions.append(("issue" if isinstance(instruction, Issue) else "await", number))
        actions += self._run(pending)
        place = self.place
        return StageOutline(place.cluster.mesh, place.ranks[0], tuple(self.stretches), tuple(actions))

    def _run(self, instructions: Sequence[Instruction]) -> list[Action]:
        if not instructions:
            return []
        key = tuple(map(id, instructions))
        if key not in self.numbers:
            self.numbers[key] = len(self.stretches)
            self.stretches.append(self._stretch(instructions))
        return [("run", self.numbers[key])]

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
    Return the seconds of a step on a cluster of all ranks of the job, whose mesh has the axes of the stages' meshes.

    In a stage with several kinds of devices, the slowest kind determines the time of every stretch.
    """
    stages = [
        subcluster(cluster, stage.mesh, range(stage.first, stage.first + stage.mesh.device_count))
        for stage in outline.stages
    ]
    stretches = [
        [stretch_seconds(stretch, stage_cluster) for stretch in stage.stretches]
        for stage, stage_cluster in zip(outline.stages, stages, strict=True)
    ]
    crossings = [_crossing_seconds(crossing, cluster) for crossing in outline.crossings]
    ends = _Run(outline, stretches, crossings).ends()
    return max(ends) + max(device.overhead for device in cluster.kinds_used)


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


class _Run:
    """Runs one step: each stage in turn advances as far as it can, until all are done. An instance runs once."""

    def __init__(self, outline: Outline, stretches: Sequence[Sequence[float]], crossings: Sequence[float]) -> None:
        self.outline, self.stretches, self.crossings = outline, stretches, crossings
        self.now = [0.0] * len(outline.stages)
        self.at = [0] * len(outline.stages)
        self.awaited = [[0] * len(crossings) for _ in outline.stages]
        self.issued: dict[int, list[list[float]]] = {stage: [[] for _ in crossings] for stage in range(len(self.now))}
        self.over: list[list[float]] = [[] for _ in crossings]
        self.free: defaultdict[tuple[int, int], float] = defaultdict(float)

    def ends(self) -> Sequence[float]:
        """Return the end time of each stage."""
        stages = range(len(self.now))
        while any(self.at[stage] < len(self.outline.stages[stage].actions) for stage in stages):
            before = list(self.at)
            for stage in stages:
                self._go_on(stage)
            assert self.at != before, "deadlock: all unfinished stages wait for one another"
        return self.now

    def _go_on(self, stage: int) -> None:
        actions = self.outline.stages[stage].actions
        while self.at[stage] < len(actions):
            action, number = actions[self.at[stage]]
            if action == "run":
                self.now[stage] += self.stretches[stage][number]
            elif action == "issue":
                self._issue(stage, number)
            elif self.awaited[stage][number] < len(self.over[number]):
                self.now[stage] = max(self.now[stage], self.over[number][self.awaited[stage][number]])
                self.awaited[stage][number] += 1
            else:
                return
            self.at[stage] += 1

    def _issue(self, stage: int, number: int) -> None:
        """Issue a transfer, and start it if both sides have issued it and the link between them is free."""
        crossing = self.outline.crossings[number]
        ends = (crossing.source, crossing.target)
        self.issued[stage][number].append(self.now[stage])
        part = len(self.issued[stage][number]) - 1
        if all(len(self.issued[each][number]) > part for each in ends):
            begin = max(self.free[ends], *(self.issued[each][number][part] for each in ends))
            self.free[ends] = begin + self.crossings[number]
            self.over[number].append(self.free[ends])
