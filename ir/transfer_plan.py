"""
Plans of transfers between meshes: senders, receivers and order of all slices (cross-mesh 3).

A transfer consists of units, one for each slice that some ranks of the source hold and that the same ranks of the
target want: a unique slice of the source, cut where receivers want different parts of it. A unit is sent as:

    broadcast         along a chain through all receivers, host by host: one copy goes to each host
    send_recv         from a sender to each receiver
    local_allgather   to each host in as many pieces as it has receivers, which exchange their pieces in a ring
    global_allgather  in as many pieces as there are receivers, which all exchange their pieces in a ring

NICs limit the speed, so senders and order are chosen for them (3.2), as a schedule of jobs on ports
(`ir/port_schedule.py`, which lists the orders). A unit that crosses hosts occupies the sending side of a NIC, and the
receiving side of a NIC at each host that wants it; hosts that forward it occupy their sending sides too. Receivers on a
host that holds the slice get it from there, and transfers inside of a host occupy devices. A host with several NICs
receives each unit through the NIC with the least incoming load so far.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from .port_jobs import Job, covering_load
from .port_schedule import Order, schedule
from .sharding import Sharding, local_slices
from .unit_tasks import Grid, Task

Method: TypeAlias = Literal["broadcast", "send_recv", "local_allgather", "global_allgather"]
Box: TypeAlias = tuple[tuple[int, int], ...]
"""A slice of a global value: begin and end per dim."""
Chain: TypeAlias = tuple[int, ...]
"""Ranks; each of them sends to the next."""
Port: TypeAlias = tuple[str, int]
"""A direction, of NICs or of devices, and the number of the NIC or the rank."""

_NEAR, _CUT_UNITS = 1.02, 30
"""Units are cut if their time exceeds the bound by this factor, and there are at most so many units."""


@dataclass(frozen=True)
class Placed:
    """A value on the ranks of a mesh."""

    grid: Grid
    sharding: Sharding

    def boxes(self, shape: Sequence[int], part: int) -> dict[Box, list[int]]:
        """Return the slices of a part that are not empty, with the ranks that hold each."""
        by_box: dict[Box, list[int]] = {}
        timed = self.grid.is_over_time(self.sharding)
        for device, (rank, at) in enumerate(zip(self.grid.ranks, self.grid.parts, strict=True)):
            if at == (part if timed else 0):
                slices = local_slices(shape, self.sharding, self.grid.mesh, device)
                box = tuple((span.start, span.stop) for span in slices)
                if all(begin < end for begin, end in box):
                    by_box.setdefault(box, []).append(rank)
        return by_box


@dataclass(frozen=True)
class WantedSlice:
    """A slice that `holders` have and all of `receivers` want, in one part of time."""

    part: int
    box: Box
    holders: tuple[int, ...]
    receivers: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements of the slice."""
        return Task(self.part, self.box, 0, ()).elements


def units(
    shape: Sequence[int], source: Placed, target: Placed, at: Mapping[str, int] = MappingProxyType({})
) -> list[WantedSlice]:
    """
    Return the units of a transfer.

    Args:
        at: part that is sent, by unrolled temporal axis.

    Raises:
        ValueError: the meshes share a rank or count time differently, or a value is partial over spatial axes.
    """
    _check(source, target)
    parts = sorted(target.grid.parts_at(at)) if target.grid.is_over_time(target.sharding) else [0]
    return [unit for part in parts for unit in _units(shape, part, source, target)]


def _check(source: Placed, target: Placed) -> None:
    if shared := sorted(set(source.grid.ranks) & set(target.grid.ranks)):
        raise ValueError(f"rank {shared[0]} is in both meshes; the meshes of stages must not share ranks")
    timed = (target.grid.is_over_time(target.sharding), source.grid.is_over_time(source.sharding))
    if any(timed):
        ours, theirs = (
            {axis: placed.grid.mesh.axis(axis).size for axis in placed.grid.times} for placed in (source, target)
        )
        if ours != theirs:
            raise ValueError(
                f"the micro-batches of the two meshes differ: {ours} on the sender, {theirs} on the receiver"
            )
    if timed == (False, True):
        raise ValueError("a micro-batched value cannot be sent to a consumer that needs the full batch")
    for placed in (source, target):
        if spatial := set(placed.sharding.partial_axes) - set(placed.grid.times):
            raise ValueError(f'the value is partial over "{min(spatial)}"; reduce it before it is sent')


def _units(shape: Sequence[int], part: int, source: Placed, target: Placed) -> Iterator[WantedSlice]:
    wanted = target.boxes(shape, part)
    for held, holders in source.boxes(shape, part).items():
        for box, receivers in wanted.items():
            common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(held, box, strict=True))
            if all(begin < end for begin, end in common):
                yield WantedSlice(part, common, tuple(holders), tuple(receivers))


@dataclass(frozen=True)
class Sites:
    """
    The places of ranks.

    Args:
        hosts: host by rank.
        nics: number of the NIC by rank (a NIC belongs to one host), or None if hosts have one NIC.
    """

    hosts: Mapping[int, int]
    nics: Mapping[int, int] | None = None

    def nic(self, rank: int) -> int:
        """Return the NIC that a rank uses."""
        return self.hosts[rank] if self.nics is None else self.nics[rank]

    def ports(self, chain: Chain) -> tuple[Port, ...]:
        """Return the ports that a slice occupies along a chain: NICs, or devices if it stays inside of a host."""
        hops = list(itertools.pairwise(chain))
        if crossing := [(a, b) for a, b in hops if self.hosts[a] != self.hosts[b]]:
            ends = [(("nic out", self.nic(a)), ("nic in", self.nic(b))) for a, b in crossing]
        else:
            ends = [(("device out", a), ("device in", b)) for a, b in hops]
        return tuple(dict.fromkeys(itertools.chain.from_iterable(ends)))


def plan(given: Iterable[WantedSlice], sites: Sites, method: Method = "broadcast", order: Order = "best") -> list[Task]:
    """Return the tasks of a transfer in start order, part by part; in each part, tasks inside of hosts come first."""
    hosts = sites.hosts
    by_part: defaultdict[int, tuple[list[WantedSlice], list[WantedSlice]]] = defaultdict(lambda: ([], []))
    for unit in given if order == "naive" else itertools.chain.from_iterable(_kept_inside(u, hosts) for u in given):
        crosses = len({hosts[rank] for rank in (*unit.holders, *unit.receivers)}) > 1
        by_part[unit.part][crosses].append(unit)
    tasks: list[Task] = []
    for part in sorted(by_part):
        inside, crossing = by_part[part]
        arranged = [*_arranged(inside, sites, lambda rank: rank, order), *_crossing(crossing, sites, order)]
        tasks += (task for unit, chain in arranged for task in _METHODS[method](unit, chain, hosts))
    return tasks


def _kept_inside(unit: WantedSlice, hosts: Mapping[int, int]) -> Iterator[WantedSlice]:
    """Yield a unit for each host that both holds and wants the slice, and a unit for all other receivers."""
    held = {hosts[rank] for rank in unit.holders}
    for host in sorted(held & {hosts[rank] for rank in unit.receivers}):
        holders, receivers = (tuple(r for r in ranks if hosts[r] == host) for ranks in (unit.holders, unit.receivers))
        yield replace(unit, holders=holders, receivers=receivers)
    if others := tuple(rank for rank in unit.receivers if hosts[rank] not in held):
        yield replace(unit, receivers=others)


def _crossing(given: Sequence[WantedSlice], sites: Sites, order: Order) -> list[tuple[WantedSlice, Chain]]:
    """
    Arrange units that go from host to host.

    If whole units cannot come near the bound, because one NIC must send one unit more than others, units that several
    NICs can send are cut into a piece for each of these NICs, if that is faster.
    """
    whole = list(_arranged(given, sites, sites.nic, order))
    if order not in ("best", "exact") or len(given) > _CUT_UNITS:
        return whole
    time = _time(whole, sites)
    if time <= _NEAR * least_nic_time(given, sites):
        return whole
    cut = [replace(unit, box=box) for unit in given for box in _pieces(unit.box, len({*map(sites.nic, unit.holders)}))]
    pieces = list(_arranged(cut, sites, sites.nic, order))
    return pieces if _time(pieces, sites) * _NEAR < time else whole


def _time(arranged: Iterable[tuple[WantedSlice, Chain]], sites: Sites) -> int:
    return nic_time((Task(unit.part, unit.box, chain[0], chain[1:]) for unit, chain in arranged), sites)


def _arranged(
    given: Sequence[WantedSlice], sites: Sites, port_of: Callable[[int], int], order: Order
) -> Iterator[tuple[WantedSlice, Chain]]:
    """
    Yield the units in start order, each with its sender and then its receivers.

    Args:
        port_of: maps a rank to its port; senders with the same port are interchangeable.
    """
    numbers: dict[Port, int] = {}
    senders: list[list[list[int]]] = []
    jobs: list[Job] = []
    entries = _entries(given, sites)
    for unit, entry in zip(given, entries, strict=True):
        by_port: dict[int, list[int]] = {}
        for rank in sorted(unit.holders):
            by_port.setdefault(port_of(rank), []).append(rank)
        senders.append(list(by_port.values()))
        chains = (_chain(unit, ranks[0], sites, entry) for ranks in by_port.values())
        ports = (tuple(numbers.setdefault(port, len(numbers)) for port in sites.ports(chain)) for chain in chains)
        jobs.append(Job(unit.elements, tuple(ports)))
    sent: defaultdict[int, int] = defaultdict(int)
    for number, option in schedule(tuple(jobs), order):
        unit, ranks = given[number], senders[number][option]
        sender = ranks[0] if order == "naive" else min(ranks, key=lambda rank: (sent[rank], rank))
        sent[sender] += unit.elements
        yield unit, _chain(unit, sender, sites, entries[number])


def _entries(given: Sequence[WantedSlice], sites: Sites) -> list[dict[int, int]]:
    """Return the first receiver of each unit at each host: at its NIC with least load so far, large units first."""
    taken: defaultdict[int, int] = defaultdict(int)
    entries: list[dict[int, int]] = [{} for _ in given]
    for number in sorted(range(len(given)), key=lambda number: -given[number].elements):
        by_host: dict[int, list[int]] = {}
        for rank in given[number].receivers:
            by_host.setdefault(sites.hosts[rank], []).append(rank)
        for host, ranks in by_host.items():
            first = min(ranks, key=lambda rank: (taken[sites.nic(rank)], rank))
            taken[sites.nic(first)] += given[number].elements
            entries[number][host] = first
    return entries


def _chain(unit: WantedSlice, sender: int, sites: Sites, entries: Mapping[int, int]) -> Chain:
    """Return the sender, the receivers on its host, and the receivers of each other host, from its entry round."""

    def place(rank: int) -> tuple[bool, int, bool, int]:
        host = sites.hosts[rank]
        return host != sites.hosts[sender], host, rank < entries[host], rank

    return sender, *sorted(unit.receivers, key=place)


def nic_time(tasks: Iterable[Task], sites: Sites) -> int:
    """
    Return the arrival of the last task that crosses hosts (equation 1), if a NIC takes an element in a unit of time.

    A task occupies all of its NICs at once, after the tasks before it have left them.
    """
    free: defaultdict[Port, int] = defaultdict(int)
    for task in tasks:
        ports = [port for port in sites.ports((task.sender, *task.receivers)) if port[0].startswith("nic")]
        end = max((free[port] for port in ports), default=0) + task.elements
        free.update(dict.fromkeys(ports, end))
    return max(free.values(), default=0)


def least_nic_time(given: Iterable[WantedSlice], sites: Sites) -> float:
    """
    Return the NIC bound: the elements that the busiest NIC must send or receive at least, in one part of time.

    Each host that wants a slice and does not hold it receives one copy; one copy of each such slice leaves its holders.
    """
    sent: defaultdict[int, list[tuple[int, frozenset[int]]]] = defaultdict(list)
    received: defaultdict[int, list[tuple[int, frozenset[int]]]] = defaultdict(list)
    for unit in given:
        by_host: defaultdict[int, set[int]] = defaultdict(set)
        for rank in unit.receivers:
            by_host[sites.hosts[rank]].add(sites.nic(rank))
        into = by_host.keys() - {sites.hosts[rank] for rank in unit.holders}
        received[unit.part] += ((unit.elements, frozenset(by_host[host])) for host in sorted(into))
        if into:
            sent[unit.part].append((unit.elements, frozenset(map(sites.nic, unit.holders))))
    return max(map(covering_load, (*sent.values(), *received.values())), default=0.0)


def _broadcast(unit: WantedSlice, chain: Chain, hosts: Mapping[int, int]) -> list[Task]:
    return [Task(unit.part, unit.box, chain[0], chain[1:])]


def _send_recv(unit: WantedSlice, chain: Chain, hosts: Mapping[int, int]) -> list[Task]:
    return [Task(unit.part, unit.box, chain[0], (rank,)) for rank in unit.receivers]


def _local_allgather(unit: WantedSlice, chain: Chain, hosts: Mapping[int, int]) -> list[Task]:
    by_host: dict[int, list[int]] = {}
    for rank in unit.receivers:
        by_host.setdefault(hosts[rank], []).append(rank)
    rings = (replace(unit, receivers=tuple(ranks)) for _, ranks in sorted(by_host.items()))
    return [task for ring in rings for task in _passed_round(ring, chain[0])]


def _global_allgather(unit: WantedSlice, chain: Chain, hosts: Mapping[int, int]) -> list[Task]:
    ring = tuple(sorted(unit.receivers, key=lambda rank: (hosts[rank], rank)))
    return _passed_round(replace(unit, receivers=ring), chain[0])


def _passed_round(unit: WantedSlice, sender: int) -> list[Task]:
    """Return one task per piece: a receiver gets it and passes it on, round the ring to the receiver before it."""
    ring, pieces = unit.receivers, _pieces(unit.box, len(unit.receivers))
    chains = (ring[i:] + ring[:i] for i in range(len(ring)))
    return [Task(unit.part, piece, sender, chain) for piece, chain in zip(pieces, chains, strict=False)]


def _pieces(box: Box, count: int) -> list[Box]:
    """Return a slice in at most `count` pieces along its longest dim; no piece is empty."""
    if not box:
        return [box]
    dim = max(range(len(box)), key=lambda i: box[i][1] - box[i][0])
    begin, end = box[dim]
    cuts = [begin + (end - begin) * i // count for i in range(count + 1)]
    pairs = ((a, b) for a, b in itertools.pairwise(cuts) if a < b)
    return [(*box[:dim], pair, *box[dim + 1 :]) for pair in pairs]


_METHODS: dict[Method, Callable[[WantedSlice, Chain, Mapping[int, int]], list[Task]]] = {
    "broadcast": _broadcast,
    "send_recv": _send_recv,
    "local_allgather": _local_allgather,
    "global_allgather": _global_allgather,
}
