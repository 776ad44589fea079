"""
A step as phases, communication and then computation, and the time of each as a function of the shares of an axis (HAP
3.2).

A phase begins where ranks communicate, and computes until they do so again; all wait for the slowest. Times are
linear in the shares: a collective's in the largest, where the line touches its time at the present shares, a device's
in its own. Shares are real here; rounding comes later. Of the roofline, the term counts that is the larger when the
axis is shared evenly, and its curve is extrapolated.
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
    """An op with its signature, in a segment of the model, and what it does of a kernel of several ops."""

    op: ComputeOp
    signature: Signature
    segment: int
    part: KernelPart | None = None


Event = Transmission | Computation

_Like = tuple[Device, tuple[tuple[str, float], ...]]
"""What ranks have in common that compute alike: a device, and shares of all axes but one."""


def events_of(view: StepView) -> tuple[Event, ...]:
    """What a step, or a stage, does, in order, once its changes of sharding are ops (`insert-resharding`)."""
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
    """The segment of every value: of the op that makes it, through changes of sharding; an argument's first user's."""
    made: dict[SSAValue, SSAValue] = {}
    found: dict[SSAValue, int] = {}
    for op in view.func.body.block.ops:
        if isinstance(op, ReshardOp):
            made[op.result] = made.get(op.operand, op.operand)
        elif isinstance(op, ComputeOp):
            segment = segment_of(op)
            for value in op.args:
                found.setdefault(made.get(value, value), segment)
            found |= dict.fromkeys(op.outs, segment)
    return found | {copy: found.get(value, 0) for copy, value in made.items()}


@dataclass
class PhaseModel:
    """How long the phases of a step take on a cluster."""

    events: tuple[Event, ...]
    cluster: Cluster
    _known: dict[object, tuple[float, float]] = field(
        default_factory=dict[object, tuple[float, float]], init=False, repr=False
    )

    def seconds(self, ratios: RatiosBySegment) -> float:
        """How long the step takes with these ratios."""
        axis = self.cluster.mesh.spatial[0].name
        shares = {segment: shares_of(each, axis, self.cluster.mesh) for segment, each in ratios.items()}
        return sum(phase.seconds(shares[phase.segment]) for phase in self.phases(axis, ratios))

    def phases(self, axis: str, ratios: RatiosBySegment) -> tuple[Phase, ...]:
        """The phases by the shares of `axis`, the other axes being shared as `ratios` has it."""
        found: list[Phase] = []
        alike = {segment: self._alike(axis, each) for segment, each in ratios.items()}
        segment, fixed, rate, talking = 0, 0.0, 0.0, False
        totals: list[list[float]] = []
        for event, kind in zip(self.events, self._kinds, strict=True):
            if event.segment != segment or (isinstance(event, Transmission) and not talking):
                found += self._closed(axis, fixed, rate, totals, alike[segment], segment)
                segment, fixed, rate, totals = event.segment, 0.0, 0.0, []
            if talking := isinstance(event, Transmission):
                costs = self._communication(event, axis, ratios[segment])
                fixed, rate = fixed + costs[0], rate + costs[1]
            else:
                totals = totals or [[0.0, 0.0] for _ in alike[segment]]
                for like, total in zip(alike[segment], totals, strict=True):
                    costs = self._computation(event, kind, axis, like)
                    total[0], total[1] = total[0] + costs[0], total[1] + costs[1]
        return tuple([*found, *self._closed(axis, fixed, rate, totals, alike[segment], segment)])

    @cached_property
    def _kinds(self) -> list[int]:
        """By event, a number that equal uses of ops with equal signatures share."""
        numbers: dict[object, int] = {}
        keys = ((e.op.use_key(), e.signature, e.part) if isinstance(e, Computation) else None for e in self.events)
        return [numbers.setdefault(key, len(numbers)) for key in keys]

    def _alike(self, axis: str, ratios: Ratios) -> dict[_Like, list[int]]:
        """The ranks with equal devices and equal shares of the other axes, by what they have in common."""
        mesh = self.cluster.mesh
        others = [(a.name, shares_of(ratios, a.name, mesh)) for a in mesh.spatial if a.name != axis]
        found: dict[_Like, list[int]] = {}
        for rank in range(mesh.device_count):
            place = mesh.coordinates(rank)
            shares = tuple((name, of_parts[place[name]]) for name, of_parts in others)
            found.setdefault((self.cluster.device(rank), shares), []).append(rank)
        return found

    def _closed(
        self,
        axis: str,
        fixed: float,
        rate: float,
        totals: list[list[float]],
        alike: dict[_Like, list[int]],
        segment: int,
    ) -> Iterator[Phase]:
        """The phase that ends here, if it has anything."""
        mesh = self.cluster.mesh
        lines = [
            PhaseWork(part, *costs)
            for costs, ranks in zip(totals, alike.values(), strict=bool(totals))
            for part in dict.fromkeys(mesh.part(rank, (axis,)) for rank in ranks)
        ]
        if fixed or rate or totals:
            yield Phase(segment, fixed, rate, tuple(dict.fromkeys(lines)))

    def _communication(self, event: Transmission, axis: str, ratios: Ratios) -> tuple[float, float]:
        """Seconds, and seconds per unit of the largest share of `axis`, of the cheaper method with these ratios."""
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
        """The seconds of a collective by the largest share of `axis`."""
        mesh = self.cluster.mesh

        def seconds(share: float) -> float:
            def part(dim: DimSharding) -> float:
                others = (max(shares_of(ratios, name, mesh)) for name in dim.axes if name != axis)
                return math.prod(others) * (share if axis in dim.axes else 1.0)

            return step_seconds(self.cluster, event.step, method, event.bytes, part)

        return seconds

    def _computation(self, event: Computation, kind: int, axis: str, like: _Like) -> tuple[float, float]:
        """Seconds, and seconds per unit of its share of `axis`, that a rank of some ranks alike computes."""
        key = (kind, axis, like)
        if key not in self._known:
            device, shares = like
            mesh = self.cluster.mesh
            even = {**dict(shares), axis: 1.0 / mesh.axis(axis).size}
            self._known[key] = _linear(event, device, mesh, even, axis)
        return self._known[key]


def shares_of(ratios: Ratios, axis: str, mesh: Mesh) -> tuple[float, ...]:
    """The shares of the parts of an axis; equal ones where it has no ratios."""
    count = mesh.axis(axis).size
    return ratios.on(axis) or (1.0 / count,) * count


def _linear(
    event: Computation, device: Device, mesh: Mesh, shares: Mapping[str, float], axis: str
) -> tuple[float, float]:
    """
    The line that touches the time of an op at these shares: (seconds, seconds per unit of the share of `axis`).

    Where the time was measured, that of the fitted rate is stretched to it.
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
    """The line that touches `seconds` at a share, by its value at 0, which is not negative, and its slope."""
    now, step = seconds(share), 0.1 * share
    slope = min((seconds(share + step) - seconds(share - step)) / (2 * step), now / share)
    return now - slope * share, slope


def held_bytes(value: SSAValue, sharding: Sharding, shares: Mapping[str, float]) -> float:
    """The bytes of a value on a device with these shares of the axes."""
    parts = (shares.get(axis, 1.0) for axis in sharding.split_axes)
    return element_bytes(value) * math.prod(shape_of(value)) * math.prod(parts)
