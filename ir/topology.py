"""
Topologies: hosts with their devices, and the wires between them.

A transfer goes from device to device inside a host, or through a NIC of either host, and occupies *ports* on its way;
each port has one direction, since wires are full duplex.
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
    bandwidth   bytes/s in each direction, of a device inside its host, or of a NIC
    start       seconds that starting a collective over it takes
    shared      whether the devices of a host share one port for both directions, like a bus
    efficiency  fraction of the bandwidth that a collective (by name, or `broadcast`) reaches; 1 by default
    """

    name: str
    latency: float
    bandwidth: float
    start: float = 0.0
    shared: bool = False
    efficiency: tuple[tuple[str, float], ...] = ()

    def part_reached(self, kind: str) -> float:
        """Return the fraction of the bandwidth that a collective reaches."""
        return dict(self.efficiency).get(kind, 1.0)


@dataclass(frozen=True)
class Host:
    """
    `count` equal hosts: the number of devices of a host, the level between them, and its NICs.

    A device uses one NIC: of 8 devices and 2 NICs, the first 4 devices use the first NIC.
    """

    devices: int
    inside: str = ""
    nic: str = ""
    nics: int = 1
    count: int = 1


@dataclass(frozen=True)
class Switch:
    """Switches of `hosts` consecutive hosts; an uplink has the bandwidth of all their NICs / `oversubscription`."""

    hosts: int
    oversubscription: float


@dataclass(frozen=True)
class Route:
    """
    The route of a transfer between two ranks.

    latency     seconds until the first byte arrives
    bandwidth   bytes/s without other traffic
    ports       the ports that the transfer occupies, each listed once; transfers that share a port share its bandwidth
    capacities  bytes/s of each port
    """

    latency: float
    bandwidth: float
    ports: tuple[str, ...]
    capacities: tuple[float, ...] = ()


@dataclass(frozen=True)
class Port:
    """An end of a wire in one direction: its bytes/s, and its level."""

    name: str
    bandwidth: float
    level: Level


@dataclass(frozen=True)
class Seat:
    """
    The place of a device: its host, the NIC that it uses, its switch, and the names of its ports for sending and
    receiving: inside the host, out of the host, and out of the switch. Names are empty where no wire is described.
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
    Hosts with the wires between them; their devices are the ranks, in order.

    Args:
        devices: device of each rank, if the cluster is a part of a larger one; by default all devices in order.

    Raises:
        ValueError: a level is not described, a host of several devices lacks a level inside, or one of several hosts
            lacks a NIC.
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
            if len(set(devices)) < len(devices) or not all(0 <= device < self._device_count for device in devices):
                raise ValueError(
                    f"devices {list(devices)} are invalid, expected different ones below {self._device_count}"
                )

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self.devices) if self.devices is not None else self._device_count

    @property
    def _device_count(self) -> int:
        return sum(host.count * host.devices for host in self.hosts)

    def seat(self, rank: int) -> Seat:
        """Return the seat of `rank`."""
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
        Return these hosts with `count` devices: the last host is cut, or all hosts are repeated; a single host without
        a NIC gets all devices. A part of a larger cluster stays as it is if it has `count` devices.
        """
        if count == self.size:
            return self
        if not self.hosts[0].nic:
            return replace(self, hosts=(replace(self.hosts[0], devices=count),), devices=None)
        hosts: list[Host] = []
        while count:
            for host in self.hosts:
                whole = min(count // host.devices, host.count)
                rest = count - whole * host.devices if whole < host.count else 0
                if whole:
                    hosts.append(replace(host, count=whole))
                if rest:
                    hosts.append(replace(host, devices=rest, count=1))
                count -= whole * host.devices + rest
        return replace(self, hosts=tuple(hosts), devices=None)

    def latency(self, sender: int, receiver: int) -> float:
        """Return the seconds until the first byte from one rank arrives at another, by the slower end."""
        here, there = self.seat(sender), self.seat(receiver)
        names = (here.inside[0], there.inside[-1]) if here.host == there.host else (here.out[0], there.out[-1])
        return max(self.ports[name].level.latency for name in names)

    def way(self, sender: int, receiver: int) -> tuple[str, ...]:
        """Return the ports from one rank to another; empty from a rank to itself."""
        here, there = self.seat(sender), self.seat(receiver)
        if sender == receiver:
            return ()
        if here.host == there.host:
            return tuple(dict.fromkeys((here.inside[0], there.inside[-1])))
        ends = (here.out[0], there.out[-1])
        return ends if here.switch == there.switch else (ends[0], here.up[0], there.up[-1], ends[1])

    def route(self, sender: int, receiver: int) -> Route:
        """Return the route from one rank to another."""
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
        """The seats of the devices of all hosts in order, and the ports by name."""
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
        """Add the two ports of a device, a NIC or a switch, and return their names; empty where there is no wire."""
        if (wire := self._by_name.get(level)) is None:
            return ()
        names = (f"{name}.out", f"{name}.in")
        ports |= {port: Port(port, bandwidth or wire.bandwidth, wire) for port in names}
        return names

    @cached_property
    def _by_name(self) -> dict[str, Level]:
        return {level.name: level for level in self.levels}
