"""
Clusters: the devices of a mesh and the links along its axes.

Units are SI: seconds, bytes, FLOP/s, bytes/s. The communication model is alpha-beta (AutoDDL 3): a collective
over k devices takes `alpha + beta * n * (k-1)/k`, where n is the bytes of the whole (gathered, or not yet
scattered) value that one device handles, and twice the second term for an all-reduce. Alpha and beta are those of the
axes' links, where these are given, else they follow from the topology, shared NICs and all (`topology_cost.py`).
Where a collective was measured at some sizes, those times hold, and beyond them the line, or their own slope.
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
"""How a collective is carried out. `padded` is `flat`, with parts of one size; a library may carry it out otherwise."""


_PHASES: Mapping[CollectiveKind, tuple[tuple[CollectiveKind, bool], ...]] = {
    CollectiveKind.ALL_REDUCE: (
        (CollectiveKind.REDUCE_SCATTER, False),
        (CollectiveKind.ALL_REDUCE, True),
        (CollectiveKind.ALL_GATHER, False),
    ),
    CollectiveKind.ALL_GATHER: ((CollectiveKind.ALL_GATHER, True), (CollectiveKind.ALL_GATHER, False)),
    CollectiveKind.REDUCE_SCATTER: ((CollectiveKind.REDUCE_SCATTER, False), (CollectiveKind.REDUCE_SCATTER, True)),
    CollectiveKind.ALL_TO_ALL: ((CollectiveKind.ALL_TO_ALL, False), (CollectiveKind.ALL_TO_ALL, True)),
}
"""The collectives that a hierarchical one consists of, and whether each is across."""

_COPIES: Mapping[CollectiveKind, int] = {
    CollectiveKind.ALL_REDUCE: 0,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.ALL_TO_ALL: 3,
}
"""How often a rank copies what it has, because of the phases."""


@dataclass(frozen=True)
class Device:
    """
    One kind of device: rates by dtype name (FLOP/s), memory bandwidth (bytes/s), memory size (bytes), the fixed
    seconds that starting one op costs, and that a step costs; where it was profiled, fitted rates of families of ops,
    and the measured seconds of single ones by `OpWork.key`. `block` is the number of bytes of which its allocator gives
    every tensor a multiple.
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
    """What `op_rate` has found so far."""

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

    alpha, beta  seconds of latency, seconds per byte; a beta of 0 says that both follow from the topology
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
        """(alpha, beta) of a collective of `kind`."""
        return self.named_costs(kind.value)

    def has_costs(self, kind: str) -> bool:
        """Whether alpha and beta of a collective, by name, are known."""
        return self.beta > 0 or kind in self._by_kind

    def named_costs(self, kind: str) -> tuple[float, float]:
        """The same, by the name that a cluster file gives it."""
        return self._by_kind.get(kind, (self.alpha, self.beta))

    def curve(self, name: str) -> Sequence[tuple[float, float]]:
        """The measured (bytes, seconds) of a collective, or `collective:algorithm`, ascending in bytes."""
        return self._curves.get(name, ())

    def curve_by(self, algorithm: Algorithm, kind: CollectiveKind) -> Sequence[tuple[float, float]]:
        """The same, of a collective by an algorithm; padded parts of which nothing is known take what even ones do."""
        own = self.curve(f"{kind.value}:{algorithm}")
        return own or (self.curve(kind.value) if algorithm in ("flat", "padded") else ())


@dataclass(frozen=True)
class Interference:
    """
    How many times longer computing (communicating) takes while the other runs on the same device.

    delays  (seconds computed since the last wait, seconds by which a rank goes on later than what it waits for is
            there), ascending: where processes share cores, one that has waited has to wait for a core, too, and all
            wait for the last. Linear between, proportional before the first and constant after the last.
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
        """Extra seconds between a wait completing and the rank resuming, by its seconds of computing before it."""
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
        links: of axes. Without a topology every spatial axis needs one; with it they are what was measured.
        interference: of computing and communicating at once.
        topology: where the ranks sit, and the wires.
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
        """The device of `rank`."""
        return self.devices[self.placement[rank]]

    def host(self, rank: int) -> int:
        """Return the number of the host of `rank`; without a topology, a row along the last axis is a host."""
        if self.topology is not None:
            return self.topology.seat(rank).host
        sizes = [axis.size for axis in self.mesh.spatial]
        return rank // sizes[-1] if len(sizes) > 1 else 0

    @cached_property
    def kinds_used(self) -> tuple[Device, ...]:
        """The kinds of device that some rank has."""
        return tuple(self.devices[i] for i in sorted(set(self.placement)))

    @property
    def memory(self) -> float:
        """The bytes of the device with the least memory."""
        return min(device.memory for device in self.kinds_used)

    @property
    def blocks(self) -> tuple[float, ...]:
        """By rank, the bytes of which every tensor takes a whole multiple."""
        return tuple(self.devices[kind].block for kind in self.placement)

    def link(self, axes: str) -> Link | None:
        """The link of an axis, or of several, called `node-gpu`."""
        return self._links.get(axes)

    @cached_property
    def _links(self) -> dict[str, Link]:
        return {link.axis: link for link in self.links}

    def collective_seconds(
        self, kind: CollectiveKind, axes: Iterable[str], whole_bytes: float, algorithm: Algorithm = "flat"
    ) -> float:
        """
        The time of one collective over `axes` on a value of which a device handles `whole_bytes` bytes.

        Measured times hold where there are any: see `TimeBySize`.
        """
        return self.collective_time(kind, tuple(axes), algorithm).seconds(whole_bytes)

    def collective_time(self, kind: CollectiveKind, axes: tuple[str, ...], algorithm: Algorithm = "flat") -> TimeBySize:
        """The same, by the bytes that a device handles."""
        if (known := self._times.get((kind, axes, algorithm))) is None:
            spatial = self._spatial(axes)
            link = self.link("-".join(spatial))
            points = tuple(link.curve_by(algorithm, kind)) if link is not None else ()
            known = TimeBySize(*self.collective_costs(kind, spatial, algorithm), points)
            self._times[kind, axes, algorithm] = known
        return known

    def start_seconds(self, kind: CollectiveKind, axes: Iterable[str], whole_bytes: float) -> float:
        """
        What the start of a collective in two halves takes, of its time, from the compute stream: as measured
        (`KIND:start` among a link's points), else nothing. Some libraries write to sockets in the calling thread.
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
        (seconds, seconds per byte) of a collective over `axes`, which all groups run at once. Over time it is free.

        A hierarchical one has phases: see `_hierarchical`.
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
        """(seconds, seconds per byte) of a broadcast, or of a reduction to one device, over `axes`."""
        axes = self._spatial(axes)
        return (0.0, 0.0) if self.mesh.parts(axes) == 1 else self._costs("broadcast", axes)[:2]

    def has_levels(self, axes: tuple[str, ...]) -> bool:
        """Whether the last of several axes is inside hosts, and the others are not."""
        axes = self._spatial(axes)
        return len(axes) > 1 and axes[-1] in self._inside and any(axis not in self._inside for axis in axes[:-1])

    @cached_property
    def _inside(self) -> frozenset[str]:
        """The axes whose groups are on one host each; none where there is no topology."""
        if (topology := self.topology) is None:
            return frozenset()
        names = [axis.name for axis in self.mesh.spatial]
        return frozenset(name for name in names if all(map(topology.one_host, self.mesh.groups((name,)))))

    def route(self, sender: int, receiver: int) -> Route:
        """The way of a transfer from one rank to another; without a topology, over the slowest axis they differ on."""
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
        The phases over the last axis and over the others, and the copies in between, which put parts in another order.

        all_reduce      reduce-scatter inside, all-reduce of a part across, all-gather inside
        all_gather      all-gather across of what the ranks of one place have, a part of the value, then inside
        reduce_scatter  the other way round
        all_to_all      inside, then across, each of all that a rank has
        """
        part = 1.0 / self.mesh.parts(inside)
        copies = _COPIES[kind] * 2 / min(device.memory_bandwidth for device in self.kinds_used)
        alpha, beta = 0.0, copies
        for each, is_across in _PHASES[kind]:
            fixed, per_byte = self.collective_costs(each, across if is_across else inside)
            alpha += fixed
            beta += per_byte * (part if is_across and kind is not CollectiveKind.ALL_TO_ALL else 1.0)
        return alpha, beta

    def _costs(self, kind: str, axes: tuple[str, ...]) -> tuple[float, float, bool]:
        """
        Alpha and beta of a flat collective, or `broadcast`; and whether beta is for the bytes of the whole value, not
        for those that each sends.
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
        """Those of `axes` that are over space, in the mesh's order."""
        asked = set(axes)
        return tuple(axis.name for axis in self.mesh.spatial if axis.name in asked)


def sent_bytes(kind: CollectiveKind, parts: int, whole_bytes: float) -> float:
    """The bytes that each device sends in a collective (ring algorithms) over `parts` devices."""
    if kind.is_local:
        return 0.0
    return (2 if kind is CollectiveKind.ALL_REDUCE else 1) * whole_bytes * (parts - 1) / parts
