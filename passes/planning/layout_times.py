"""Lower bounds and rough estimates of the step times of layouts, before any strategy is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf

from xdsl.ir import SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp, value_bytes
from ...ir.cluster import Cluster, Device
from ...ir.collectives import CollectiveKind
from ...ir.mesh import Mesh
from ...ir.op_cost import OpWork, op_seconds
from ...ir.sharding import Sharding
from ...ir.signatures import Choice
from ...ir.submesh import divisions, on_mesh
from ..analysis.compute import op_work
from ..analysis.fusion import least_parts
from ..partition_stages import stage_clusters
from ..stages.chunk_bounds import best_bounds
from ..stages.stage_costs import LayerWork, StageCosts, whole_signature
from ..step.batch_parts import BatchParts
from ..step.layers import find_layers
from ..step.step_view import StepView, batch_rows
from .candidates import Layout
from .pipeline_times import PipelineWork, pipeline_seconds
from .solutions import BUBBLE_AT_BEST

Cut = Callable[[bool], BatchParts | str]
"""Returns how ops and values are cut with the batch, or the reason why the batch cannot be cut."""


class LayoutTimes:
    """
    The times of a step on a cluster.

    Args:
        views: views of the step, with decomposed batch-norms.
        cut: function that returns which ops are cut with the batch.
    """

    def __init__(self, views: Sequence[StepView], cluster: Cluster, cut: Cut) -> None:
        self.views, self.cluster, self._cut = views, cluster, cut
        self._estimates: dict[Layout, float] = {}
        self._known_works: dict[bool, Counter[tuple[OpWork, bool, bool]]] = {}

    def least(self, layout: Layout) -> float:
        """
        Return the least compute time of a step of a layout: every op is split over all devices of a stage, and a
        pipeline fills and drains.
        """
        devices = self.cluster.mesh.device_count
        kinds = [(self.cluster.devices[kind], count) for kind, count in Counter(self.cluster.placement).items()]
        shares = layout.parts * devices / layout.stages
        total = 0.0
        for (work, joins, is_cut), times in self._works(layout.mode == "duplex").items():
            turns = layout.parts if is_cut else 1
            part = shares if turns > 1 else shares / layout.parts
            part_work = replace(work, flops=work.flops / part, bytes=work.bytes / part)
            speed = sum(count / max(op_seconds(kind, part_work, joins=joins), 1e-12) for kind, count in kinds)
            total += times * turns * devices / speed
        stage = total / layout.stages
        return stage * (1.0 + BUBBLE_AT_BEST * (layout.stages - 1) / layout.parts)

    def _works(self, unrolled: bool) -> Counter[tuple[OpWork, bool, bool]]:
        """Return the work of each op, whether it may join others, and whether it is cut with the batch, with counts."""
        if unrolled not in self._known_works:
            cut = self._cut(unrolled)
            choices = dict[ComputeOp, Choice]() if isinstance(cut, str) else cut.choices
            works = self._known_works[unrolled] = Counter[tuple[OpWork, bool, bool]]()
            for view in self.views:
                parts = least_parts(view.func)
                for op in view.ops:
                    if not isinstance(op, train.AssignOp):
                        work = op_work(op, whole_signature(op), Mesh(()), keyed=False, part=parts.get(op))
                        works[work, train.may_join(op), choices.get(op) is not None] += 1
        return self._known_works[unrolled]

    def estimated(self, layout: Layout) -> float:
        """
        Return a rough estimate of the seconds of a step of a layout.

        Pipelines are estimated in `pipeline_times.py`. Without stages it is the larger of compute time and reduction.
        """
        if layout not in self._estimates:
            cluster = on_mesh(self.cluster, layout.mesh)
            if layout.stages == 1:
                reduced = self._reducing(cluster) if cluster.mesh.device_count > 1 else 0.0
                self._estimates[layout] = max(self.least(layout), reduced)
            else:
                ways = divisions(layout.mesh, layout.stages)
                self._estimates[layout] = min(
                    (self._of_stages(layout, cluster, counts) for counts in ways), default=inf
                )
        return self._estimates[layout]

    def _of_stages(self, layout: Layout, cluster: Cluster, counts: tuple[int, ...]) -> float:
        """Return the estimate for a pipeline whose stages have these numbers of devices."""
        stages = stage_clusters(cluster, counts)
        total = 0.0
        for layers, work in self._layers:
            costs = StageCosts(layers, cluster, counts, layout.parts, layout.chunks)
            try:
                bounds = best_bounds(costs)
            except ValueError:
                return inf
            total += pipeline_seconds(work, replace(costs, launches=True), bounds, stages)
        return total

    def _reducing(self, cluster: Cluster) -> float:
        """Return the seconds of reducing all gradients over all devices of a cluster."""
        parameters = (value for view in self.views for value in view.inputs if value.role == train.PARAM)
        size = sum(value_bytes(parameter.argument) for parameter in parameters)
        return cluster.collective_seconds(CollectiveKind.ALL_REDUCE, cluster.mesh.names, size)

    @cached_property
    def _layers(self) -> list[tuple[LayerWork, PipelineWork]]:
        cut = self._cut(False)
        values = dict[SSAValue, Sharding]() if isinstance(cut, str) else cut.values
        once = {value for value, sharding in values.items() if not sharding.split_axes}
        rows = batch_rows(value for view in self.views for value in view.inputs) or 1
        works: list[tuple[LayerWork, PipelineWork]] = []
        for view in self.views:
            layers = find_layers(view)
            sizes = Counter[int]()
            for item in view.inputs:
                if item.role == train.PARAM:
                    sizes[layers.homes[item.argument]] += value_bytes(item.argument)
            works.append((LayerWork(view, layers), PipelineWork(rows, sizes, once)))
        return works

    @property
    def by_kind(self) -> Mapping[Device, float]:
        """Map kinds of devices to the seconds of the whole step on one device."""
        return dict(zip(self.cluster.kinds_used, self._alone[0], strict=True))

    @property
    def slowest(self) -> float:
        """Return the seconds of all ops on the slowest kind, relative to a device that is the slowest at every op."""
        totals, worst = self._alone
        return max(totals) / worst if worst else 1.0

    @cached_property
    def _alone(self) -> tuple[list[float], float]:
        """Return the seconds of all ops on each kind of device, and the sum over ops of the slowest kind's seconds."""
        kinds = self.cluster.kinds_used
        totals, worst = [0.0] * len(kinds), 0.0
        for (work, _, _), times in self._works(False).items():
            seconds = [times * op_seconds(kind, work) for kind in kinds]
            totals = [total + time for total, time in zip(totals, seconds, strict=True)]
            worst += max(seconds)
        return totals, worst
