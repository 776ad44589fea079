"""
Clusters: the devices of a mesh and the links along its axes.

Units are SI: seconds, bytes, FLOP/s, bytes/s. The communication model is alpha-beta (AutoDDL 3): a collective
over k devices takes `alpha + beta * n * (k-1)/k`, where n is the bytes of the whole (gathered, or not yet
scattered) value that one device handles, and twice the second term for an all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .collectives import CollectiveKind
from .mesh import Mesh
from .op_cost import OpRate


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
    The network along one mesh axis: seconds of latency, seconds per byte, and measured exceptions by
    collective.
    """

    axis: str
    alpha: float
    beta: float
    measured: tuple[tuple[str, float, float], ...] = ()
    _by_kind: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_kind", {kind: (alpha, beta) for kind, alpha, beta in self.measured})

    def costs(self, kind: CollectiveKind) -> tuple[float, float]:
        """(alpha, beta) of a collective of `kind`."""
        return self.named_costs(kind.value)

    def named_costs(self, kind: str) -> tuple[float, float]:
        """The same, by the name that a cluster file gives it."""
        return self._by_kind.get(kind, (self.alpha, self.beta))


@dataclass(frozen=True)
class Cluster:
    """A mesh with a kind of device per rank (`placement` indexes `devices`) and a link per axis."""

    name: str
    mesh: Mesh
    devices: tuple[Device, ...]
    placement: tuple[int, ...]
    links: tuple[Link, ...]

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

    def collective_seconds(self, kind: CollectiveKind, axes: Iterable[str], whole_bytes: float) -> float:
        """The time of one collective over `axes` on a value of which a device handles `whole_bytes` bytes."""
        alpha, beta = self.collective_costs(kind, tuple(axes))
        return alpha + beta * whole_bytes

    def collective_costs(self, kind: CollectiveKind, axes: tuple[str, ...]) -> tuple[float, float]:
        """
        (seconds, seconds per byte) of a flat collective over `axes`: the slowest link bounds it. Over time it is free.
        """
        axes = tuple(axis.name for axis in self.mesh.spatial if axis.name in axes)
        parts = self.mesh.parts(axes)
        if kind.is_local or parts == 1:
            return 0.0, 0.0
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


def sent_bytes(kind: CollectiveKind, parts: int, whole_bytes: float) -> float:
    """The bytes that each device sends in a collective (ring algorithms) over `parts` devices."""
    if kind.is_local:
        return 0.0
    return (2 if kind is CollectiveKind.ALL_REDUCE else 1) * whole_bytes * (parts - 1) / parts
