"""
How near schedules of the cross-mesh paper's steps (Table 3) come to what computing and links allow.

    python benchmarks/papers/cross_mesh.py --schedules [--models NAME ...] [--micro-batches N ...] [--rates R ...]

The steps are those of Figure 7 (`cross_mesh_figures.py`): two stages of four GPUs, whose fixed schedules and `auto` are
simulated; once with one chunk of layers in each stage, and once with up to two (`partition-stages{chunks=2}`). Rates
are of the data sheet's. Beside them stand

free    the step whose links between stages take no time: the same division into stages and the same strategy, with the
        schedule that `auto` chooses on that cluster
links   a lower bound by what links between stages carry, the most over links: when its first transfer can begin at the
        earliest, all that it carries in the loop over micro-batches, and what must follow its last transfer; and what
        a step takes besides the loop where links take no time

All are seconds of a step; `of free` is free / auto, `of bound` the larger of both / auto. Planning is in processor
seconds of `schedule-pipeline{schedule=auto}` with the transfers of `plan-transfers`; `parts` are micro-batches.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from _estimated_runs import estimate
from _report import plot_grouped, publish
from cross_mesh_figures import MODELS, Model, instant, planned, scheduled, simulated
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from shardwright.dialects.mesh_ops import ClusterOp
from shardwright.dialects.stage_program import schedule_of
from shardwright.passes.analysis.simulation.alone import seconds_alone
from shardwright.passes.analysis.simulation.simulate import Simulator, places_of
from shardwright.passes.stages.estimate import PipelineTimes
from shardwright.passes.stages.fragments import Fragments
from shardwright.passes.stages.schedules import Delivery, FragmentKind, PipelineShape, ScheduleName, Work, policies
from shardwright.passes.step.loop import find_loop, temporal_axis
from shardwright.passes.step.step_view import cluster_of_module, stage_meshes, step_views

FIXED: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "zero-bubble", "eager-1f1b", "interleaved-1f1b")


def _function(module: ModuleOp) -> FuncOp:
    return next(op for op in module.ops if isinstance(op, FuncOp))


def free(base: ModuleOp) -> ModuleOp:
    """A planned step on a cluster whose NICs take no time."""
    module = base.clone()
    old = next(op for op in module.ops if isinstance(op, ClusterOp))
    module.body.block.insert_op_after(ClusterOp(instant(cluster_of_module(base))), old)
    old.detach()
    return module


def times_of(base: ModuleOp, module: ModuleOp, parts: int) -> tuple[PipelineTimes, Mapping[str, float]]:
    """
    What a pipeline runs, and all its transfers by label, those outside the loop too, with their seconds.

    Args:
        module: the planned step `base` with a schedule.
    """
    func, clusters = _function(module), [own for _, own in step_views(module)]
    runs, crossing = seconds_alone(Simulator(func, places_of(func, clusters, cluster_of_module(module))))
    unscheduled = base.clone()
    func = _function(unscheduled)
    fragments = Fragments(func, find_loop(func, temporal_axis(func, stage_meshes(unscheduled, func)[0][1], None)))
    works, deliveries = tuple(fragments.works()), tuple(fragments.deliveries())
    return PipelineTimes(works, deliveries, parts, runs, crossing), crossing


class LinkBound:
    """What links allow; one use."""

    def __init__(self, times: PipelineTimes) -> None:
        self.times = times
        self.work_of = {work.label: work for work in times.works}
        self.sent: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
        for each in times.deliveries:
            for user in each.users:
                self.sent[each.source, user].append(each)
        kinds = list(FragmentKind)
        for work in times.works:
            for other in times.works:
                same = (work.stage, work.chunk) == (other.stage, other.chunk)
                if same and kinds.index(work.kind) < kinds.index(other.kind):
                    # Nothing crosses, where no delivery was entered above.
                    self.sent.setdefault((work.label, other.label), [])

    def seconds(self) -> float:
        """Of the loop: the most that a link takes with what comes before its first and after its last transfer."""
        links: dict[tuple[int, int], list[Delivery]] = defaultdict(list)
        for each in self.times.deliveries:
            links[self.work_of[each.source].stage, each.stage].append(each)
        return max(self._of_link(mine) for mine in links.values())

    def _of_link(self, mine: Sequence[Delivery]) -> float:
        head = min(self._ends(self.work_of[each.source]) for each in mine)
        tail = min(max((self._left(self.work_of[user]) for user in each.users), default=0.0) for each in mine)
        return head + self.times.parts * sum(self.times.transfers[each.label] for each in mine) + tail

    def _edges(self, work: Work, *, into: bool) -> list[tuple[Work, float]]:
        """The fragments of a part right before or after one, with what crosses between, over one link."""
        found: list[tuple[Work, float]] = []
        for (source, user), deliveries in self.sent.items():
            here, there = (user, source) if into else (source, user)
            if here == work.label:
                found.append((self.work_of[there], sum(self.times.transfers[each.label] for each in deliveries)))
        return found

    def _ends(self, work: Work) -> float:
        """When a fragment can be over at the earliest."""
        before = (self._ends(each) + crossing for each, crossing in self._edges(work, into=True))
        return max(before, default=0.0) + self.times.runs[work.label]

    def _left(self, work: Work) -> float:
        """What takes the longest from the begin of a fragment."""
        after = (crossing + self._left(each) for each, crossing in self._edges(work, into=False))
        return self.times.runs[work.label] + max(after, default=0.0)


def row_of(model: Model, parts: int, rate: float, chunks: int) -> dict[str, Any]:
    """A step with all schedules, and its bounds."""
    base = planned(model, parts, rate, chunks)
    begin = time.process_time()
    auto = scheduled(base, "auto", "broadcast", "best")
    planning = time.process_time() - begin
    times, _ = times_of(base, auto, parts)
    shape = PipelineShape(2, parts, 1 + max(work.chunk for work in times.works))
    seconds = {name: simulated(scheduled(base, name, "broadcast", "best")) for name in policies(shape)}
    unhindered = scheduled(free(base), "auto", "broadcast", "best")
    least, (free_times, _) = simulated(unhindered), times_of(base, unhindered, parts)
    outside = least - estimate(schedule_of(_function(unhindered)), free_times).seconds
    links = LinkBound(times).seconds() + outside
    found = simulated(auto)
    row: dict[str, Any] = {"model": model.name, "rate": rate, "parts": parts, "chunks": shape.chunks}
    row |= {name: seconds.get(name, "") for name in FIXED}
    row |= {"auto": found, "free": least, "links": links, "of free": least / found}
    return row | {"of bound": max(least, links) / found, "planning": planning}


def publish_schedules(names: Sequence[str], micro_batches: Sequence[int], rates: Sequence[float]) -> None:
    """Print the table, write JSON and a plot; `names` are of the models, by default all."""
    given = " ".join(map(str, micro_batches)), " ".join(f"{rate:g}" for rate in rates)
    command = f"python benchmarks/papers/cross_mesh.py --schedules --micro-batches {given[0]} --rates {given[1]}"
    command += "".join(f" --models '{name}'" for name in names)
    cases = [
        (model, parts, rate, chunks)
        for model in MODELS
        if not names or model.name in names
        for parts in micro_batches
        for rate in rates
        for chunks in (1, 2)
    ]
    rows = [row_of(*case) for case in cases]
    publish("cross_mesh_schedules", rows, command=command)
    labels = [f"{row['model']} x {row['parts']}, {row['rate']:g}, {row['chunks']} chunks" for row in rows]
    series = {"best fixed": [min(row[name] for name in FIXED if row[name]) for row in rows]}
    series |= {way: [row[way] for row in rows] for way in ("auto", "free", "links")}
    plot_grouped("cross_mesh_schedules", labels, series, ylabel="seconds, simulated")
