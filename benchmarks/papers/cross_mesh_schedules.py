"""
Compare schedules of the cross-mesh paper's steps (Table 3) with lower bounds of computation and links.

    python benchmarks/papers/cross_mesh.py --schedules [--models NAME ...] [--micro-batches N ...] [--rates R ...]

The steps are the steps of Figure 7 (`cross_mesh_figures.py`): two stages of four GPUs. All fixed schedules and `auto`
are simulated, with one chunk of layers per stage and with up to two (`partition-stages{chunks=2}`). Rates are shares of
the data sheet's rates. Further columns are

free    the step with links between stages that take no time: the same stages and strategy, with the schedule that
        `auto` chooses on that cluster
links   a lower bound by the links between stages. The bound of a link is the earliest begin of its first transfer, plus
        the time of all its transfers in the loop over micro-batches, plus the work that must follow its last transfer.
        The bound is the largest of these, plus the step's time outside the loop with links that take no time

These are seconds of a step. `of free` is free / auto, and `of bound` is max(free, links) / auto. Planning is in
processor seconds of `schedule-pipeline{schedule=auto}` with `plan-transfers`; `parts` is the number of micro-batches.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from _outline import estimate
from _report import columns_of, plot_grouped, publish
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
    """Return a planned step on a cluster whose NICs take no time."""
    module = base.clone()
    old = next(op for op in module.ops if isinstance(op, ClusterOp))
    module.body.block.insert_op_after(ClusterOp(instant(cluster_of_module(base))), old)
    old.detach()
    return module


def times_of(base: ModuleOp, module: ModuleOp, parts: int) -> PipelineTimes:
    """Return the times of the loop of a pipeline, from the planned step `base` and the same step with a schedule."""
    func, clusters = _function(module), [own for _, own in step_views(module)]
    runs, crossing = seconds_alone(Simulator(func, places_of(func, clusters, cluster_of_module(module))))
    unscheduled = base.clone()
    func = _function(unscheduled)
    fragments = Fragments(func, find_loop(func, temporal_axis(func, stage_meshes(unscheduled, func)[0][1], None)))
    works, deliveries = tuple(fragments.works()), tuple(fragments.deliveries())
    return PipelineTimes(works, deliveries, parts, runs, crossing)


class LinkBound:
    """Lower bound of a pipeline's loop by its links. An instance is used once."""

    def __init__(self, times: PipelineTimes) -> None:
        self.times = times
        self.work_of = {work.label: work for work in times.works}
        self.sent: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
        for delivery in times.deliveries:
            for user in delivery.users:
                self.sent[delivery.source, user].append(delivery)
        kinds = list(FragmentKind)
        for work in times.works:
            for other in times.works:
                same = (work.stage, work.chunk) == (other.stage, other.chunk)
                if same and kinds.index(work.kind) < kinds.index(other.kind):
                    # The fragments depend on each other on one device: the edge has no delivery.
                    self.sent.setdefault((work.label, other.label), [])

    def seconds(self) -> float:
        """Return the largest bound over links: earliest begin, all transfers, and the work after the last one."""
        links: dict[tuple[int, int], list[Delivery]] = defaultdict(list)
        for delivery in self.times.deliveries:
            links[self.work_of[delivery.source].stage, delivery.stage].append(delivery)
        return max(self._of_link(deliveries) for deliveries in links.values())

    def _of_link(self, mine: Sequence[Delivery]) -> float:
        head = min(self._longest(self.work_of[delivery.source], into=True) for delivery in mine)
        tails = ([self._longest(self.work_of[user], into=False) for user in delivery.users] for delivery in mine)
        tail = min(max(after, default=0.0) for after in tails)
        return head + self.times.parts * sum(self.times.transfers[delivery.label] for delivery in mine) + tail

    def _longest(self, work: Work, *, into: bool) -> float:
        """Return the longest time from the begin of a part to the end of a fragment, or from its begin to the end."""
        longest = 0.0
        for (source, user), deliveries in self.sent.items():
            near, far = (user, source) if into else (source, user)
            if near == work.label:
                crossing = sum(self.times.transfers[delivery.label] for delivery in deliveries)
                longest = max(longest, self._longest(self.work_of[far], into=into) + crossing)
        return longest + self.times.runs[work.label]


def row_of(model: Model, parts: int, rate: float, chunks: int) -> dict[str, Any]:
    """Return the row of a step: all schedules, and its bounds."""
    base = planned(model, parts, rate, chunks)
    begin = time.process_time()
    auto = scheduled(base, "auto", "broadcast", "best")
    planning = time.process_time() - begin
    times = times_of(base, auto, parts)
    shape = PipelineShape(2, parts, 1 + max(work.chunk for work in times.works))
    seconds = {name: simulated(scheduled(base, name, "broadcast", "best")) for name in policies(shape)}
    unhindered = scheduled(free(base), "auto", "broadcast", "best")
    least, free_times = simulated(unhindered), times_of(base, unhindered, parts)
    outside = least - estimate(schedule_of(_function(unhindered)), free_times).seconds
    links = LinkBound(times).seconds() + outside
    step = simulated(auto)
    row: dict[str, Any] = {"model": model.name, "rate": rate, "parts": parts, "chunks": shape.chunks}
    row |= {name: seconds.get(name, "") for name in FIXED}
    row |= {"auto": step, "free": least, "links": links, "of free": least / step}
    return row | {"of bound": max(least, links) / step, "planning": planning}


def publish_schedules(names: Sequence[str], micro_batches: Sequence[int], rates: Sequence[float]) -> None:
    """Print the table, and write JSON file and plot. `names` selects models; if empty, all are used."""
    cases = [
        (model, parts, rate, chunks)
        for model in MODELS
        if not names or model.name in names
        for parts in micro_batches
        for rate in rates
        for chunks in (1, 2)
    ]
    rows = [row_of(*case) for case in cases]
    publish("cross_mesh_schedules", rows)
    labels = [f"{row['model']} x {row['parts']}, {row['rate']:g}, {row['chunks']} chunks" for row in rows]
    series = {"best fixed": [min(row[name] for name in FIXED if row[name]) for row in rows]}
    series |= columns_of(rows, "auto", "free", "links")
    plot_grouped("cross_mesh_schedules", labels, series, title="Steps by schedule", ylabel="simulated step, s")
