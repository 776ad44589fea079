"""
Topologies: the hosts that devices sit in, and the wires between them.

A transfer goes from device to device inside a host, or through a NIC of either host, and occupies *ports* on its way,
each in one direction, for wires are full duplex.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class Level:
    """
    One kind of wire, inside hosts or between them.

    latency     seconds until the first byte of a message arrives
    bandwidth   bytes/s each way, of a device inside its host, or of a NIC
    start       seconds that a collective which uses it takes to begin
    shared      the devices of a host have it together, one direction for all, like a bus
    efficiency  the part of the bandwidth that a collective (by name, or `broadcast`) reaches; all of it by default
    """

    name: str
    latency: float
    bandwidth: float
    start: float = 0.0
    shared: bool = False
    efficiency: tuple[tuple[str, float], ...] = ()

    def part_reached(self, kind: str) -> float:
        """The part of the bandwidth that a collective reaches."""
        return dict(self.efficiency).get(kind, 1.0)


@dataclass(frozen=True)
class Host:
    """
    `count` hosts alike: how many devices one has, the level between them, and its NICs.

    A device uses one NIC: the first of 8 devices the first of 2, the last the second.
    """

    devices: int
    inside: str = ""
    nic: str = ""
    nics: int = 1
    count: int = 1


@dataclass(frozen=True)
class Switch:
    """Each `hosts` consecutive hosts hang on a switch, whose uplink has their NICs' bandwidth / `oversubscription`."""

    hosts: int
    oversubscription: float


@dataclass(frozen=True)
class Route:
    """
    The way of a transfer between two ranks.

    latency     seconds until the first byte arrives
    bandwidth   bytes/s when nothing else is sent
    ports       what the transfer occupies on its way, each named once and for one direction: transfers that share a
                port share its bandwidth
    capacities  the bytes/s of each port
    """

    latency: float
    bandwidth: float
    ports: tuple[str, ...]
    capacities: tuple[float, ...] = ()


@dataclass(frozen=True)
class Port:
    """An end of a wire in one direction: its bytes/s, and the level that it is of."""

    name: str
    bandwidth: float
    level: Level


@dataclass(frozen=True)
class Seat:
    """
    Where a device sits: its host, the NIC that it uses, its switch, and the names of the ports that it sends and
    receives by: inside the host, out of it, and out of its switch. There are none inside a host of one device, none
    out of a cluster's only host, and none out of its only switch.
    """

    host: int
    nic: int
    switch: int
    inside: tuple[str, ...]
    out: tuple[str, ...]
    up: tuple[str, ...]


@dataclass(frozen=True)
class Topology:
    """
    Hosts with the wires between them; ranks sit on their devices in order.

    Args:
        devices: the device of each rank, where the cluster is a part of a larger one; by default all in order.

    Raises:
        ValueError: a level that is not described, a host of several devices without one inside, several hosts of which
            one has no NIC.
    """

    levels: tuple[Level, ...]
    hosts: tuple[Host, ...]
    switch: Switch | None = None
    devices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        names = [level.name for level in self.levels]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f'level "{repeated[0]}" is described twice')
        for level in self.levels:
            if level.bandwidth <= 0 or any(part <= 0 for _, part in level.efficiency):
                raise ValueError(f'level "{level.name}" has no bandwidth')
        if self.switch is not None and (self.switch.hosts < 1 or self.switch.oversubscription <= 0):
            raise ValueError("a switch needs at least 1 host, and an oversubscription above 0")
        several = sum(host.count for host in self.hosts) > 1
        for host in self.hosts:
            if min(host.devices, host.nics, host.count) < 1:
                raise ValueError(f"devices, nics and count of a host must be at least 1, found {host}")
            for name in filter(None, (host.inside, host.nic)):
                if name not in names:
                    raise ValueError(f'level "{name}" is not described; levels: {", ".join(names) or "none"}')
            if host.devices > 1 and not host.inside:
                raise ValueError(f"a host of {host.devices} devices needs the level between them (inside)")
            if several and not host.nic:
                raise ValueError("each of several hosts needs the level of its NIC")
        if (devices := self.devices) is not None:
            if len(set(devices)) < len(devices) or not all(0 <= each < self._device_count for each in devices):
                raise ValueError(f"devices {list(devices)} are not different ones of {self._device_count}")

    @property
    def size(self) -> int:
        """How many devices there are."""
        return len(self.devices) if self.devices is not None else self._device_count

    @property
    def _device_count(self) -> int:
        return sum(host.count * host.devices for host in self.hosts)

    def seat(self, rank: int) -> Seat:
        """Where `rank` sits."""
        return self._built[0][rank if self.devices is None else self.devices[rank]]

    def one_host(self, ranks: Iterable[int]) -> bool:
        """Whether all of `ranks` are on one host."""
        return len({self.seat(rank).host for rank in ranks}) <= 1

    def part(self, ranks: Sequence[int]) -> Topology:
        """Return the same hosts and wires for a cluster with some ranks of this one, in the given order."""
        devices = tuple(ranks) if self.devices is None else tuple(self.devices[rank] for rank in ranks)
        return replace(self, devices=devices)

    def resized(self, count: int) -> Topology:
        """
        Hosts of `count` devices, as these are: the last one cut, or all of them again and again; one that is alone,
        without a NIC, has them all. A part of a larger cluster stays as it is if it has as many devices.
        """
        if count == self.size:
            return self
        if not self.hosts[0].nic:
            return replace(self, hosts=(replace(self.hosts[0], devices=count),), devices=None)
        hosts: list[Host] = []
        while count:
            for each in self.hosts:
                whole = min(count // each.devices, each.count)
                rest = count - whole * each.devices if whole < each.count else 0
                if whole:
                    hosts.append(replace(each, count=whole))
                if rest:
                    hosts.append(replace(each, devices=rest, count=1))
                count -= whole * each.devices + rest
        return replace(self, hosts=tuple(hosts), devices=None)

    def latency(self, sender: int, receiver: int) -> float:
        """Seconds until the first byte from one rank arrives at another: of the slower end."""
        here, there = self.seat(sender), self.seat(receiver)
        names = (here.inside[0], there.inside[-1]) if here.host == there.host else (here.out[0], there.out[-1])
        return max(self.ports[name].level.latency for name in names)

    def way(self, sender: int, receiver: int) -> tuple[str, ...]:
        """The ports from one rank to another; none from a rank to itself."""
        here, there = self.seat(sender), self.seat(receiver)
        if sender == receiver:
            return ()
        if here.host == there.host:
            return tuple(dict.fromkeys((here.inside[0], there.inside[-1])))
        ends = (here.out[0], there.out[-1])
        return ends if here.switch == there.switch else (ends[0], here.up[0], there.up[-1], ends[1])

    def route(self, sender: int, receiver: int) -> Route:
        """The way from one rank to another, with what it takes."""
        if not (names := self.way(sender, receiver)):
            return Route(0.0, math.inf, ())
        capacities = tuple(self.ports[name].bandwidth for name in names)
        return Route(self.latency(sender, receiver), min(capacities), names, capacities)

    @property
    def ports(self) -> Mapping[str, Port]:
        """All ports, by name."""
        return self._built[1]

    @cached_property
    def _built(self) -> tuple[list[Seat], dict[str, Port]]:
        """The devices of all hosts in order, and the ports."""
        seats: list[Seat] = []
        ports: dict[str, Port] = {}
        hosts = [host for host in self.hosts for _ in range(host.count)]
        for number, host in enumerate(hosts):
            switch = number // self.switch.hosts if self.switch is not None else 0
            nics = [self._both_ways(ports, f"host{number}.nic{nic}", host.nic) for nic in range(host.nics)]
            up = self._uplink(ports, switch, hosts)
            for place in range(host.devices):
                nic = place * host.nics // host.devices
                inside = self._inside(ports, number, len(seats), host)
                seats.append(Seat(number, nic, switch, inside, nics[nic], up))
        return seats, ports

    def _inside(self, ports: dict[str, Port], number: int, device: int, host: Host) -> tuple[str, ...]:
        level = self._by_name.get(host.inside)
        if level is None or not level.shared:
            return self._both_ways(ports, f"device{device}", host.inside)
        name = f"host{number}.bus"
        ports[name] = Port(name, level.bandwidth, level)
        return (name,)

    def _uplink(self, ports: dict[str, Port], number: int, hosts: Sequence[Host]) -> tuple[str, ...]:
        if self.switch is None:
            return ()
        below = hosts[number * self.switch.hosts : (number + 1) * self.switch.hosts]
        bandwidth = sum(host.nics * self._by_name[host.nic].bandwidth for host in below if host.nic)
        return self._both_ways(ports, f"switch{number}", below[0].nic, bandwidth / self.switch.oversubscription)

    def _both_ways(
        self, ports: dict[str, Port], name: str, level: str, bandwidth: float | None = None
    ) -> tuple[str, ...]:
        """The names of the two ports of a device, a NIC or a switch; none where there is no wire."""
        if (wire := self._by_name.get(level)) is None:
            return ()
        names = (f"{name}.out", f"{name}.in")
        ports |= {each: Port(each, bandwidth or wire.bandwidth, wire) for each in names}
        return names

    @cached_property
    def _by_name(self) -> dict[str, Level]:
        return {level.name: level for level in self.levels}
