"""
Divide a step into phases of communication and computation, timed as functions of the shares of an axis (HAP 3.2).

A phase begins with communication, and its computation lasts until the next communication; the slowest rank determines
its time. Times are linear: a collective's in the largest share, tangent at the present shares; a device's in its own
share, tangent at even shares to the roofline term that is larger there. Shares are real numbers; rounding follows
later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from xdsl.ir import SSAValue

from ...dialects.compute import ComputeOp, element_bytes, shape_of, value_bytes
from ...dialects.ratios import segment_of
from ...dialects.spmd import ReshardOp
from ...dialects.step import sharding_of
from ...ir.cluster import Cluster, Device
from ...ir.collective_cost import Method, has_hierarchy, is_gather_or_scatter, step_seconds
from ...ir.collectives import CollectiveKind, Step, single_step
from ...ir.mesh import Mesh
from ...ir.op_cost import KernelPart, OpWork, op_rate, op_seconds
from ...ir.ratios import Ratios
from ...ir.sharding import DimSharding, Sharding
from ...ir.signatures import Signature, Split, choices_of
from ..analysis.compute import counts_of, spec_of
from ..analysis.fusion import fused_parts
from ..step.step_view import StepView
from .ratios import Phase, PhaseWork

RatiosBySegment = Mapping[int, Ratios]


@dataclass(frozen=True)
class Transmission:
    """A collective on a value of `bytes` bytes, in a segment of the model."""

    step: Step
    bytes: float
    segment: int


@dataclass(frozen=True)
class Computation:
    """An op with its signature, in a segment of the model, and its part of a fused kernel if it is in one."""

    op: ComputeOp
    signature: Signature
    segment: int
    part: KernelPart | None = None


Event = Transmission | Computation

_Like = tuple[Device, tuple[tuple[str, float], ...]]
"""The key of ranks that compute equally fast: a device kind, and the shares of all axes except the balanced one."""


def events_of(view: StepView) -> tuple[Event, ...]:
    """Return the events of a step, or of a stage, in program order; run `insert-resharding` first."""
    return tuple(_events(view))


def _events(view: StepView) -> Iterator[Event]:
    segments, parts = segments_of(view), fused_parts(view.func)
    for op in filter(view.has, view.func.body.block.ops):
        if isinstance(op, ReshardOp):
            step = single_step(sharding_of(op.operand), op.sharding, view.mesh)
            if step is not None and step.kind is not CollectiveKind.SLICE:
                yield Transmission(step, float(value_bytes(op.operand)), segments.get(op.operand, 0))
        elif isinstance(op, ComputeOp) and op.signature is not None and not spec_of(op).view:
            yield Computation(op, op.signature, segment_of(op), parts.get(op))


def segments_of(view: StepView) -> dict[SSAValue, int]:
    """Map each value to the segment of its producer, through changes of sharding, or of an argument's first user."""
    source: dict[SSAValue, SSAValue] = {}
    by_value: dict[SSAValue, int] = {}
    for op in view.func.body.block.ops:
        if isinstance(op, ReshardOp):
            source[op.result] = source.get(op.operand, op.operand)
        elif isinstance(op, ComputeOp):
            segment = segment_of(op)
            for value in op.args:
                by_value.setdefault(source.get(value, value), segment)
            by_value |= dict.fromkeys(op.outs, segment)
    return by_value | {copy: by_value.get(value, 0) for copy, value in source.items()}


@dataclass
class PhaseModel:
    """The seconds of the phases of a step on a cluster."""

    events: tuple[Event, ...]
    cluster: Cluster
    _known: dict[object, tuple[float, float]] = field(
        default_factory=dict[object, tuple[float, float]], init=False, repr=False
    )

    def seconds(self, ratios: RatiosBySegment) -> float:
        """Return the seconds of the step with these ratios."""
        axis = self.cluster.mesh.spatial[0].name
        shares = {segment: shares_of(of_segment, axis, self.cluster.mesh) for segment, of_segment in ratios.items()}
        return sum(phase.seconds(shares[phase.segment]) for phase in self.phases(axis, ratios))

    def phases(self, axis: str, ratios: RatiosBySegment) -> tuple[Phase, ...]:
        """Return the phases as functions of the shares of `axis`; the other axes have their shares from `ratios`."""
        phases: list[Phase] = []
        alike = {segment: self._alike(axis, of_segment) for segment, of_segment in ratios.items()}
        segment, fixed, rate, talking = 0, 0.0, 0.0, False
        totals: list[list[float]] = []
        for event, kind in zip(self.events, self._kinds, strict=True):
            if event.segment != segment or (isinstance(event, Transmission) and not talking):
                phases += self._closed(axis, fixed, rate, totals, alike[segment], segment)
                segment, fixed, rate, totals = event.segment, 0.0, 0.0, []
            if talking := isinstance(event, Transmission):
                costs = self._communication(event, axis, ratios[segment])
                fixed, rate = fixed + costs[0], rate + costs[1]
            else:
                totals = totals or [[0.0, 0.0] for _ in alike[segment]]
                for like, total in zip(alike[segment], totals, strict=True):
                    costs = self._computation(event, kind, axis, like)
                    total[0], total[1] = total[0] + costs[0], total[1] + costs[1]
        return tuple([*phases, *self._closed(axis, fixed, rate, totals, alike[segment], segment)])

    @cached_property
    def _kinds(self) -> list[int]:
        """Number the events so that equal uses of ops with equal signatures share a number."""
        numbers: dict[object, int] = {}
        keys = ((e.op.use_key(), e.signature, e.part) if isinstance(e, Computation) else None for e in self.events)
        return [numbers.setdefault(key, len(numbers)) for key in keys]

    def _alike(self, axis: str, ratios: Ratios) -> dict[_Like, list[int]]:
        """Group the ranks that have equal devices and equal shares of the other axes."""
        mesh = self.cluster.mesh
        others = [(a.name, shares_of(ratios, a.name, mesh)) for a in mesh.spatial if a.name != axis]
        groups: dict[_Like, list[int]] = {}
        for rank in range(mesh.device_count):
            place = mesh.coordinates(rank)
            shares = tuple((name, of_parts[place[name]]) for name, of_parts in others)
            groups.setdefault((self.cluster.device(rank), shares), []).append(rank)
        return groups

    def _closed(
        self,
        axis: str,
        fixed: float,
        rate: float,
        totals: list[list[float]],
        alike: dict[_Like, list[int]],
        segment: int,
    ) -> Iterator[Phase]:
        """Yield the phase that ends here, unless it is empty."""
        mesh = self.cluster.mesh
        lines = [
            PhaseWork(part, *costs)
            for costs, ranks in zip(totals, alike.values(), strict=bool(totals))
            for part in dict.fromkeys(mesh.part(rank, (axis,)) for rank in ranks)
        ]
        if fixed or rate or totals:
            yield Phase(segment, fixed, rate, tuple(dict.fromkeys(lines)))

    def _communication(self, event: Transmission, axis: str, ratios: Ratios) -> tuple[float, float]:
        """Return (seconds, seconds per unit of the largest share of `axis`) of the fastest method at these ratios."""
        methods: tuple[Method, ...] = ("flat",)
        if ratios.split(event.step.axes) and event.step.kind is CollectiveKind.ALL_TO_ALL:
            methods = ("padded",)
        elif ratios.split(event.step.axes) and is_gather_or_scatter(event.step):
            methods = ("padded", "grouped_broadcast")
        if has_hierarchy(self.cluster, event.step):
            methods = (*methods, "hierarchical")
        times = [self._carried_out(event, method, axis, ratios) for method in methods]
        largest = max(shares_of(ratios, axis, self.cluster.mesh))
        return _touching(min(times, key=lambda seconds: seconds(largest)), largest)

    def _carried_out(self, event: Transmission, method: Method, axis: str, ratios: Ratios) -> Callable[[float], float]:
        """Return the seconds of a collective as a function of the largest share of `axis`."""
        mesh = self.cluster.mesh

        def seconds(share: float) -> float:
            def part(dim: DimSharding) -> float:
                others = (max(shares_of(ratios, name, mesh)) for name in dim.axes if name != axis)
                return math.prod(others) * (share if axis in dim.axes else 1.0)

            return step_seconds(self.cluster, event.step, method, event.bytes, part)

        return seconds

    def _computation(self, event: Computation, kind: int, axis: str, like: _Like) -> tuple[float, float]:
        """Return (seconds, seconds per unit of the share of `axis`) of an op on a rank of the group `like`."""
        key = (kind, axis, like)
        if key not in self._known:
            device, shares = like
            mesh = self.cluster.mesh
            even = {**dict(shares), axis: 1.0 / mesh.axis(axis).size}
            self._known[key] = _linear(event, device, mesh, even, axis)
        return self._known[key]


def shares_of(ratios: Ratios, axis: str, mesh: Mesh) -> tuple[float, ...]:
    """Return the shares of the parts of an axis; they are equal if the axis has no ratios."""
    count = mesh.axis(axis).size
    return ratios.on(axis) or (1.0 / count,) * count


def _linear(
    event: Computation, device: Device, mesh: Mesh, shares: Mapping[str, float], axis: str
) -> tuple[float, float]:
    """
    Return the tangent to the time of an op at these shares: (seconds, seconds per unit of the share of `axis`).

    If the device has measured times, the tangent is scaled by the ratio of measured to fitted time.
    """
    counts = counts_of(event.op)
    chosen = choices_of(counts.rule, event.signature, mesh)[0]

    def work(share: float) -> OpWork:
        sizes: dict[str, float] = dict(counts.rule.sizes)
        for name, choice in zip(mesh.names, chosen, strict=True):
            if isinstance(choice, Split):
                sizes[choice.factor] *= share if name == axis else shares.get(name, 1.0)
        return counts.work(sizes, keyed=bool(device.table), part=event.part)

    here, rate = work(shares[axis]), op_rate(device, counts.family, counts.dtype)
    if not (here.flops or here.bytes):
        return 0.0, 0.0
    if here.joins:
        rate = replace(rate, launch=0.0)
    computes = rate.seconds(here.flops, 0.0) > rate.seconds(0.0, here.bytes)

    def seconds(share: float) -> float:
        done = work(share)
        return rate.seconds(done.flops, 0.0) if computes else rate.seconds(0.0, done.bytes)

    fixed, slope = _touching(seconds, shares[axis])
    stretched = op_seconds(device, here) / seconds(shares[axis]) if device.table else 1.0
    return stretched * fixed, stretched * slope


def _touching(seconds: Callable[[float], float], share: float) -> tuple[float, float]:
    """Return the tangent to `seconds` at a share: its value at 0, which is at least 0, and its slope."""
    now, step = seconds(share), 0.1 * share
    slope = min((seconds(share + step) - seconds(share - step)) / (2 * step), now / share)
    return now - slope * share, slope


def held_bytes(value: SSAValue, sharding: Sharding, shares: Mapping[str, float]) -> float:
    """Return the bytes of a value on a device that has these shares of the axes."""
    parts = (shares.get(axis, 1.0) for axis in sharding.split_axes)
    return element_bytes(value) * math.prod(shape_of(value)) * math.prod(parts)
