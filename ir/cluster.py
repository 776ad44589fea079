"""
Clusters: the devices of a mesh and the links along its axes.

Units are SI: seconds, bytes, FLOP/s, bytes/s. The communication model is alpha-beta (AutoDDL 3): a collective
over k devices takes `alpha + beta * n * (k-1)/k`, where n is the bytes of the whole (gathered, or not yet
scattered) value that one device handles, and twice the second term for an all-reduce. Where a collective was measured
at some sizes, those times hold, and the line between and beyond them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from .collectives import CollectiveKind
from .mesh import Mesh
from .op_cost import OpRate
from .topology import Route

BackEnd: TypeAlias = Literal["analytic", "fitted", "table"]

Algorithm: TypeAlias = Literal["flat", "padded", "grouped_broadcast", "hierarchical"]
"""How a collective is carried out. `padded` is `flat`, with parts of one size."""


@dataclass(frozen=True)
class Device:
    """
    One kind of device: rates by dtype name (FLOP/s), memory bandwidth (bytes/s), memory size (bytes), the fixed
    seconds that starting one op costs, and that a step costs; where it was profiled, fitted rates of families of ops,
    and the measured seconds of single ones by `OpWork.key`.
    """

    kind: str
    flops: tuple[tuple[str, float], ...]
    memory_bandwidth: float
    memory: float
    launch: float = 0.0
    rates: tuple[OpRate, ...] = ()
    table: tuple[tuple[str, float], ...] = field(default=(), hash=False)
    overhead: float = 0.0
    _fitted: Mapping[tuple[str, str], OpRate] = field(
        default_factory=dict[tuple[str, str], OpRate], init=False, repr=False, compare=False
    )
    _measured: Mapping[str, float] = field(
        default_factory=dict[str, float], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fitted", {(rate.family, rate.dtype): rate for rate in self.rates})
        object.__setattr__(self, "_measured", dict(self.table))

    def rate(self, dtype: str) -> float:
        """FLOP/s in `dtype`; the lowest listed rate where it is not listed."""
        rates = dict(self.flops)
        return rates.get(dtype, min(rates.values()))

    def fitted(self, family: str, dtype: str) -> OpRate | None:
        """The fitted rate that is listed for exactly this family and dtype."""
        return self._fitted.get((family, dtype))

    def measured(self, key: str) -> float | None:
        """The measured seconds of an op."""
        return self._measured.get(key)


@dataclass(frozen=True)
class Link:
    """
    The network along one mesh axis, or along several at once, called `node-gpu` in the mesh's order.

    alpha, beta  seconds of latency, seconds per byte
    measured     exceptions by collective: its name, alpha and beta
    points       measured times: a collective, or `collective:algorithm`, bytes of the whole value, seconds
    """

    axis: str
    alpha: float
    beta: float
    measured: tuple[tuple[str, float, float], ...] = ()
    points: tuple[tuple[str, float, float], ...] = ()
    _by_kind: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]], init=False, repr=False, compare=False
    )
    _curves: Mapping[str, list[tuple[float, float]]] = field(
        default_factory=dict[str, list[tuple[float, float]]], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        curves: dict[str, list[tuple[float, float]]] = {}
        for name, size, seconds in sorted(self.points):
            curves.setdefault(name, []).append((size, seconds))
        object.__setattr__(self, "_by_kind", {kind: (alpha, beta) for kind, alpha, beta in self.measured})
        object.__setattr__(self, "_curves", curves)

    def costs(self, kind: CollectiveKind) -> tuple[float, float]:
        """(alpha, beta) of a collective of `kind`."""
        return self.named_costs(kind.value)

    def named_costs(self, kind: str) -> tuple[float, float]:
        """The same, by the name that a cluster file gives it."""
        return self._by_kind.get(kind, (self.alpha, self.beta))

    def curve(self, name: str) -> Sequence[tuple[float, float]]:
        """The measured (bytes, seconds) of a collective, or `collective:algorithm`, ascending in bytes."""
        return self._curves.get(name, ())


@dataclass(frozen=True)
class Interference:
    """How many times longer computing (communicating) takes while the other runs on the same device."""

    compute: float = 1.0
    communication: float = 1.0


@dataclass(frozen=True)
class Cluster:
    """A mesh with a kind of device per rank (`placement` indexes `devices`) and a link per axis."""

    name: str
    mesh: Mesh
    devices: tuple[Device, ...]
    placement: tuple[int, ...]
    links: tuple[Link, ...]
    interference: Interference = Interference()

    def __post_init__(self) -> None:
        if len(self.placement) != self.mesh.device_count:
            raise ValueError(
                f"cluster @{self.name} places {len(self.placement)} devices, its mesh {self.mesh} has"
                f" {self.mesh.device_count}"
            )
        if unknown := [kind for kind in self.placement if not 0 <= kind < len(self.devices)]:
            raise ValueError(
                f"cluster @{self.name} places a device of kind {unknown[0]}, it describes {len(self.devices)} kinds"
            )
        missing = [axis.name for axis in self.mesh.spatial if axis.name not in {link.axis for link in self.links}]
        if missing:
            raise ValueError(f'cluster @{self.name} has no link for mesh axis "{missing[0]}"')

    def device(self, rank: int) -> Device:
        """The device of `rank`."""
        return self.devices[self.placement[rank]]

    @property
    def kinds_used(self) -> tuple[Device, ...]:
        """The kinds of device that some rank has."""
        return tuple(self.devices[i] for i in sorted(set(self.placement)))

    @property
    def memory(self) -> float:
        """The bytes of the device with the least memory."""
        return min(device.memory for device in self.kinds_used)

    def collective_seconds(
        self, kind: CollectiveKind, axes: Iterable[str], whole_bytes: float, algorithm: Algorithm = "flat"
    ) -> float:
        """
        The time of one collective over `axes` on a value of which a device handles `whole_bytes` bytes.

        Measured times hold where there are any: the power law between two of them, and beyond the alpha-beta line,
        scaled to meet the last.
        """
        axes = tuple(axes)
        alpha, beta = self.collective_costs(kind, axes, algorithm)
        link = self._link("-".join(self._spatial(axes)))
        named = kind.value if algorithm in ("flat", "padded") else f"{kind.value}:{algorithm}"
        if link is None or not (curve := link.curve(named)):
            return alpha + beta * whole_bytes
        return interpolated(curve, whole_bytes, lambda size: alpha + beta * size)

    def collective_costs(
        self, kind: CollectiveKind, axes: tuple[str, ...], algorithm: Algorithm = "flat"
    ) -> tuple[float, float]:
        """
        (seconds, seconds per byte) of a collective over `axes`: the slowest link bounds it. Over time it is free.
        """
        axes = self._spatial(axes)
        parts = self.mesh.parts(axes)
        if kind.is_local or parts == 1:
            return 0.0, 0.0
        if algorithm == "grouped_broadcast":
            alpha, beta = self.broadcast_costs(axes)
            return alpha * parts, beta
        links = {link.axis: link for link in self.links}
        costs = [links[axis].costs(kind) for axis in axes]
        turns = 2 if kind is CollectiveKind.ALL_REDUCE else 1
        return sum(a for a, _ in costs), turns * max(b for _, b in costs) * (parts - 1) / parts

    def broadcast_costs(self, axes: tuple[str, ...]) -> tuple[float, float]:
        """(seconds, seconds per byte) of a broadcast, or of a reduction to one device, over `axes`."""
        if self.mesh.parts(axes) == 1:
            return 0.0, 0.0
        costs = [link.named_costs("broadcast") for link in self.links if link.axis in axes]
        return sum(alpha for alpha, _ in costs), max(beta for _, beta in costs)

    def route(self, sender: int, receiver: int) -> Route:
        """The way of a transfer from one rank to another: over the slowest axis on which they differ."""
        here, there = self.mesh.coordinates(sender), self.mesh.coordinates(receiver)
        links = [link for link in self.links if here.get(link.axis) != there.get(link.axis)]
        if not links:
            return Route(0.0, math.inf, ())
        slowest = max(links, key=lambda link: link.beta)
        ports = (f"rank{sender}.{slowest.axis}.out", f"rank{receiver}.{slowest.axis}.in")
        bandwidth = 1.0 / slowest.beta if slowest.beta else math.inf
        return Route(max(link.alpha for link in links), bandwidth, ports)

    def _link(self, name: str) -> Link | None:
        return next((link for link in self.links if link.axis == name), None)

    def _spatial(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Those of `axes` that are over space, in the mesh's order."""
        asked = set(axes)
        return tuple(axis.name for axis in self.mesh.spatial if axis.name in asked)


def interpolated(curve: Sequence[tuple[float, float]], size: float, line: Callable[[float], float]) -> float:
    """
    The seconds at `size` bytes: on the power law between its neighbours in `curve`, beyond its ends in proportion to
    `line`.
    """
    above = bisect_right(curve, size, key=lambda point: point[0])
    if above in (0, len(curve)):
        at, seconds = curve[max(above - 1, 0)]
        return seconds * line(size) / line(at) if line(at) else seconds
    (small, low), (large, high) = curve[above - 1], curve[above]
    return low * (high / low) ** (math.log(size / small) / math.log(large / small))


def restricted(cluster: Cluster, back_end: BackEnd) -> Cluster:
    """
    The cluster without what a back end may not use.

    analytic  what data sheets say: latency, bandwidth, FLOP/s
    fitted    what was fitted to measurements, too: alpha and beta by collective, rates of ops, interference
    table     everything, measured times too
    """
    if back_end == "table":
        return cluster
    analytic = back_end == "analytic"
    devices = [replace(device, table=(), rates=() if analytic else device.rates) for device in cluster.devices]
    links = [replace(link, points=(), measured=() if analytic else link.measured) for link in cluster.links]
    kept = Interference() if analytic else cluster.interference
    return replace(cluster, devices=tuple(devices), links=tuple(links), interference=kept)


def sent_bytes(kind: CollectiveKind, parts: int, whole_bytes: float) -> float:
    """The bytes that each device sends in a collective (ring algorithms) over `parts` devices."""
    if kind.is_local:
        return 0.0
    return (2 if kind is CollectiveKind.ALL_REDUCE else 1) * whole_bytes * (parts - 1) / parts
