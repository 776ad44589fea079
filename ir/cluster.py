"""
Clusters: the devices of a mesh and the links along its axes.

Units are SI: seconds, bytes, FLOP/s, bytes/s. The communication model is alpha-beta (AutoDDL 3): a collective
over k devices takes `alpha + beta * n * (k-1)/k`, where n is the bytes of the whole (gathered, or not yet
scattered) value that one device handles; an all-reduce takes the second term twice. Alpha and beta come from the axes'
links if these give them, else from the topology with its shared NICs (`topology_cost.py`). Times that were measured at
some sizes replace this model; see `TimeBySize`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeAlias

from .collectives import CollectiveKind
from .mesh import Mesh
from .op_rate import OpRate
from .time_by_size import TimeBySize
from .topology import Route, Topology
from .topology_cost import topology_costs

Algorithm: TypeAlias = Literal["flat", "padded", "grouped_broadcast", "hierarchical"]
"""The algorithm of a collective. `padded` is `flat` with parts padded to one size; libraries may treat it otherwise."""


PHASES: Mapping[CollectiveKind, tuple[tuple[CollectiveKind, bool], ...]] = {
    CollectiveKind.ALL_REDUCE: (
        (CollectiveKind.REDUCE_SCATTER, False),
        (CollectiveKind.ALL_REDUCE, True),
        (CollectiveKind.ALL_GATHER, False),
    ),
    CollectiveKind.ALL_GATHER: ((CollectiveKind.ALL_GATHER, True), (CollectiveKind.ALL_GATHER, False)),
    CollectiveKind.REDUCE_SCATTER: ((CollectiveKind.REDUCE_SCATTER, False), (CollectiveKind.REDUCE_SCATTER, True)),
    CollectiveKind.ALL_TO_ALL: ((CollectiveKind.ALL_TO_ALL, False), (CollectiveKind.ALL_TO_ALL, True)),
}
"""The phases of a hierarchical collective, and whether each phase runs across hosts."""

_COPIES: Mapping[CollectiveKind, int] = {
    CollectiveKind.ALL_REDUCE: 0,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.ALL_TO_ALL: 3,
}
"""The number of copies that a rank makes of its data because of the phases."""


@dataclass(frozen=True)
class Device:
    """
    One kind of device: rates by dtype name (FLOP/s), memory bandwidth (bytes/s), memory size (bytes), and the fixed
    seconds of each op and of each step. A profiled device also has fitted rates of families of ops, and measured
    seconds of single ops by `OpWork.key`. `block` is the allocation granularity: the allocator rounds the bytes of
    every tensor up to a multiple.
    """

    kind: str
    flops: tuple[tuple[str, float], ...]
    memory_bandwidth: float
    memory: float
    launch: float = 0.0
    rates: tuple[OpRate, ...] = ()
    table: tuple[tuple[str, float], ...] = field(default=(), hash=False)
    overhead: float = 0.0
    block: float = 1.0
    _fitted: Mapping[tuple[str, str], OpRate] = field(
        default_factory=dict[tuple[str, str], OpRate], init=False, repr=False, compare=False
    )
    _measured: Mapping[str, float] = field(default_factory=dict[str, float], init=False, repr=False, compare=False)
    rates_by_use: dict[tuple[str, str], OpRate] = field(
        default_factory=dict[tuple[str, str], OpRate], init=False, repr=False, compare=False
    )
    """The rates that `op_rate` has looked up so far."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fitted", {(rate.family, rate.dtype): rate for rate in self.rates})
        object.__setattr__(self, "_measured", dict(self.table))

    def rate(self, dtype: str) -> float:
        """Return the FLOP/s in `dtype`, or the lowest listed rate if `dtype` is not listed."""
        rates = dict(self.flops)
        return rates.get(dtype, min(rates.values()))

    def fitted(self, family: str, dtype: str) -> OpRate | None:
        """Return the fitted rate that is listed for exactly this family and dtype, or None."""
        return self._fitted.get((family, dtype))

    def measured(self, key: str) -> float | None:
        """Return the measured seconds of an op, or None."""
        return self._measured.get(key)


@dataclass(frozen=True)
class Link:
    """
    The network along one mesh axis, or along several at once, called `node-gpu` in the mesh's order.

    alpha, beta  latency in seconds, and seconds per byte; a beta of 0 means that both follow from the topology
    measured     exceptions by collective: its name, alpha and beta
    points       measured times: a collective, `collective:algorithm` or `collective:start`; bytes of the whole; seconds
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
        for name, size, seconds in self.points:
            if size <= 0 or seconds <= 0:
                raise ValueError(f"{name} was measured to take {seconds} s for {size} bytes, expected positive numbers")
        object.__setattr__(self, "measured", tuple(sorted(self.measured)))
        object.__setattr__(self, "points", tuple(sorted(self.points)))
        curves: dict[str, list[tuple[float, float]]] = {}
        for name, size, seconds in self.points:
            curves.setdefault(name, []).append((size, seconds))
        object.__setattr__(self, "_by_kind", {kind: (alpha, beta) for kind, alpha, beta in self.measured})
        object.__setattr__(self, "_curves", curves)

    def costs(self, kind: CollectiveKind) -> tuple[float, float]:
        """Return (alpha, beta) of a collective of `kind`."""
        return self.named_costs(kind.value)

    def has_costs(self, kind: str) -> bool:
        """Whether alpha and beta of a collective, by name, are known."""
        return self.beta > 0 or kind in self._by_kind

    def named_costs(self, kind: str) -> tuple[float, float]:
        """Return (alpha, beta) of a collective by its name in cluster files."""
        return self._by_kind.get(kind, (self.alpha, self.beta))

    def curve(self, name: str) -> Sequence[tuple[float, float]]:
        """Return the measured (bytes, seconds) of a collective, or `collective:algorithm`, ascending in bytes."""
        return self._curves.get(name, ())

    def curve_by(self, algorithm: Algorithm, kind: CollectiveKind) -> Sequence[tuple[float, float]]:
        """Return the measured times of an algorithm; padded parts without measurements take as long as even parts."""
        own = self.curve(f"{kind.value}:{algorithm}")
        return own or (self.curve(kind.value) if algorithm in ("flat", "padded") else ())


@dataclass(frozen=True)
class Interference:
    """
    Slowdown factors of computing and of communicating, while both run on the same device.

    delays  (seconds computed since the last wait, extra seconds between a wait completing and the rank resuming),
            ascending: where processes share cores, a rank that has waited must first get a core, and all ranks wait
            for the last. Linear between entries, proportional before the first and constant after the last.
    """

    compute: float = 1.0
    communication: float = 1.0
    delays: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if self.compute <= 0 or self.communication <= 0:
            raise ValueError(f"interference factors must be positive, found {self}")
        stretches = [computed for computed, _ in self.delays]
        rising = all(a < b for a, b in pairwise([0.0, *stretches]))
        if not rising or any(delay < 0 for _, delay in self.delays):
            raise ValueError(
                f"delays must be listed by increasing seconds of computing, none negative; found {self.delays}"
            )

    def delay(self, computed: float) -> float:
        """Return the extra seconds between a wait completing and the rank resuming, by seconds computed before it."""
        before, least = 0.0, 0.0
        for at, delay in self.delays:
            if computed < at:
                return least + (delay - least) * (computed - before) / (at - before)
            before, least = at, delay
        return least


@dataclass(frozen=True)
class Cluster:
    """
    A mesh with a kind of device per rank (`placement` indexes `devices`), and the links between them.

    Args:
        links: links of axes. Without a topology every spatial axis needs one; with a topology they hold measurements.
        interference: slowdown of computing and communicating at once.
        topology: hosts, and the network levels between their devices.
    """

    name: str
    mesh: Mesh
    devices: tuple[Device, ...]
    placement: tuple[int, ...]
    links: tuple[Link, ...]
    interference: Interference = Interference()
    topology: Topology | None = None
    _known: dict[tuple[str, tuple[str, ...]], tuple[float, float]] = field(
        default_factory=dict[tuple[str, tuple[str, ...]], tuple[float, float]], init=False, repr=False, compare=False
    )
    _times: dict[tuple[CollectiveKind, tuple[str, ...], Algorithm], TimeBySize] = field(
        default_factory=dict[tuple[CollectiveKind, tuple[str, ...], Algorithm], TimeBySize],
        init=False,
        repr=False,
        compare=False,
    )

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
        missing = [axis.name for axis in self.mesh.spatial if self.link(axis.name) is None]
        if missing and self.topology is None:
            raise ValueError(f'cluster @{self.name} has no link for mesh axis "{missing[0]}"')
        if self.topology is not None and self.topology.size < self.mesh.device_count:
            raise ValueError(
                f"cluster @{self.name} has hosts with {self.topology.size} devices, its mesh {self.mesh} has"
                f" {self.mesh.device_count}"
            )

    def device(self, rank: int) -> Device:
        """Return the device of `rank`."""
        return self.devices[self.placement[rank]]

    def host(self, rank: int) -> int:
        """Return the number of the host of `rank`; without a topology, a row along the last axis is a host."""
        if self.topology is not None:
            return self.topology.seat(rank).host
        sizes = [axis.size for axis in self.mesh.spatial]
        return rank // sizes[-1] if len(sizes) > 1 else 0

    @cached_property
    def kinds_used(self) -> tuple[Device, ...]:
        """The kinds of device that the ranks have."""
        return tuple(self.devices[i] for i in sorted(set(self.placement)))

    @property
    def memory(self) -> float:
        """The memory of the device with the least memory, in bytes."""
        return min(device.memory for device in self.kinds_used)

    @property
    def blocks(self) -> tuple[float, ...]:
        """The allocation granularity in bytes, by rank."""
        return tuple(self.devices[kind].block for kind in self.placement)

    def link(self, axes: str) -> Link | None:
        """Return the link of an axis, or of several axes (`node-gpu`), or None if it is not listed."""
        return self._links.get(axes)

    @cached_property
    def _links(self) -> dict[str, Link]:
        return {link.axis: link for link in self.links}

    def collective_seconds(
        self, kind: CollectiveKind, axes: Iterable[str], whole_bytes: float, algorithm: Algorithm = "flat"
    ) -> float:
        """
        Return the seconds of one collective over `axes`; each device handles `whole_bytes` bytes of the whole value.

        Measured times take precedence: see `TimeBySize`.
        """
        return self.collective_time(kind, tuple(axes), algorithm).seconds(whole_bytes)

    def collective_time(self, kind: CollectiveKind, axes: tuple[str, ...], algorithm: Algorithm = "flat") -> TimeBySize:
        """Return the time of one collective as a function of the bytes that a device handles."""
        if (time := self._times.get((kind, axes, algorithm))) is None:
            spatial = self._spatial(axes)
            link = self.link("-".join(spatial))
            points = tuple(link.curve_by(algorithm, kind)) if link is not None else ()
            time = TimeBySize(*self.collective_costs(kind, spatial, algorithm), points)
            self._times[kind, axes, algorithm] = time
        return time

    def start_seconds(self, kind: CollectiveKind, axes: Iterable[str], whole_bytes: float) -> float:
        """
        Return the part of a collective's seconds that its asynchronous start occupies on the compute stream: as
        measured (`KIND:start` among a link's points), else 0. Some libraries write to sockets in the calling thread.
        """
        axes = self._spatial(axes)
        link = self.link("-".join(axes))
        if link is None or not (curve := link.curve(f"{kind.value}:start")):
            return 0.0
        seconds = TimeBySize(*self.collective_costs(kind, axes), tuple(curve)).seconds(whole_bytes)
        return min(seconds, self.collective_seconds(kind, axes, whole_bytes))

    def collective_costs(
        self, kind: CollectiveKind, axes: tuple[str, ...], algorithm: Algorithm = "flat"
    ) -> tuple[float, float]:
        """
        Return (seconds, seconds per byte) of a collective over `axes` that all groups run at once; 0 on temporal axes.

        A hierarchical collective has phases: see `_hierarchical`.
        """
        axes = self._spatial(axes)
        parts = self.mesh.parts(axes)
        if kind.is_local or parts == 1:
            return 0.0, 0.0
        if algorithm == "grouped_broadcast":
            alpha, beta = self.broadcast_costs(axes)
            return alpha * parts, beta
        if algorithm == "hierarchical" and len(axes) > 1:
            return self._hierarchical(kind, axes[:-1], axes[-1:])
        alpha, beta, is_whole = self._costs(kind.value, axes)
        turns = 2 if kind is CollectiveKind.ALL_REDUCE else 1
        return alpha, beta if is_whole else turns * beta * (parts - 1) / parts

    def broadcast_costs(self, axes: tuple[str, ...]) -> tuple[float, float]:
        """Return (seconds, seconds per byte) of a broadcast, or of a reduction to one device, over `axes`."""
        axes = self._spatial(axes)
        return (0.0, 0.0) if self.mesh.parts(axes) == 1 else self._costs("broadcast", axes)[:2]

    def has_levels(self, axes: tuple[str, ...]) -> bool:
        """Whether the last of several axes is inside hosts, and another one is not."""
        axes = self._spatial(axes)
        return len(axes) > 1 and axes[-1] in self._inside and any(axis not in self._inside for axis in axes[:-1])

    @cached_property
    def _inside(self) -> frozenset[str]:
        """The axes whose groups each lie on one host; empty without a topology."""
        if (topology := self.topology) is None:
            return frozenset()
        names = [axis.name for axis in self.mesh.spatial]
        return frozenset(name for name in names if all(map(topology.one_host, self.mesh.groups((name,)))))

    def route(self, sender: int, receiver: int) -> Route:
        """Return the route from one rank to another; without a topology, over the slowest axis between them."""
        if self.topology is not None:
            return self.topology.route(sender, receiver)
        here, there = self.mesh.coordinates(sender), self.mesh.coordinates(receiver)
        links = [link for link in self.links if here.get(link.axis) != there.get(link.axis)]
        if not links:
            return Route(0.0, math.inf, ())
        slowest = max(links, key=lambda link: link.beta)
        ports = (f"rank{sender}.{slowest.axis}.out", f"rank{receiver}.{slowest.axis}.in")
        bandwidth = 1.0 / slowest.beta if slowest.beta else math.inf
        return Route(max(link.alpha for link in links), bandwidth, ports, (bandwidth, bandwidth))

    def _hierarchical(
        self, kind: CollectiveKind, across: tuple[str, ...], inside: tuple[str, ...]
    ) -> tuple[float, float]:
        """
        Return the costs of the phases over `inside` and `across`, and of the copies that reorder parts between them.

        all_reduce      reduce-scatter inside, all-reduce of a part across, all-gather inside
        all_gather      all-gather of a part across, then all-gather inside
        reduce_scatter  reduce-scatter inside, then reduce-scatter of a part across
        all_to_all      all-to-all inside, then across, each with all data of a rank
        """
        part = 1.0 / self.mesh.parts(inside)
        copies = _COPIES[kind] * 2 / min(device.memory_bandwidth for device in self.kinds_used)
        alpha, beta = 0.0, copies
        for phase, is_across in PHASES[kind]:
            fixed, per_byte = self.collective_costs(phase, across if is_across else inside)
            alpha += fixed
            beta += per_byte * (part if is_across and kind is not CollectiveKind.ALL_TO_ALL else 1.0)
        return alpha, beta

    def _costs(self, kind: str, axes: tuple[str, ...]) -> tuple[float, float, bool]:
        """
        Return alpha and beta of a flat collective or `broadcast`, and whether beta counts bytes of the whole value
        instead of bytes that each rank sends.
        """
        if (link := self.link("-".join(axes))) is not None and (self.topology is None or link.has_costs(kind)):
            return (*link.named_costs(kind), kind == "broadcast")
        if self.topology is None:
            costs = [self._links[axis].named_costs(kind) for axis in axes]
            return sum(alpha for alpha, _ in costs), max(beta for _, beta in costs), kind == "broadcast"
        if (key := (kind, axes)) not in self._known:
            self._known[key] = topology_costs(self.topology, kind, self.mesh.groups(axes))
        return (*self._known[key], True)

    def _spatial(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Return the spatial axes among `axes`, in the mesh's order."""
        asked = set(axes)
        return tuple(axis.name for axis in self.mesh.spatial if axis.name in asked)


def sent_bytes(kind: CollectiveKind, parts: int, whole_bytes: float) -> float:
    """Return the bytes that each device sends in a collective (ring algorithms) over `parts` devices."""
    if kind.is_local:
        return 0.0
    return (2 if kind is CollectiveKind.ALL_REDUCE else 1) * whole_bytes * (parts - 1) / parts
