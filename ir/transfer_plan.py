"""
Plans of transfers between meshes: which rank sends which slice to whom, and in which order (cross-mesh 3).

A transfer falls into units, one for each slice that some ranks of the source hold and that the same ranks of the
target want: a unique slice of the source, cut where receivers want different parts of it. How a unit travels:

    broadcast         along a chain through all receivers, host by host: one copy goes to each host
    send_recv         from a sender to each receiver
    local_allgather   to each host in as many pieces as it has receivers, which pass theirs round among them
    global_allgather  in as many pieces as there are receivers, which pass theirs round among all

NICs are what limits speed, so senders and order are chosen for them (3.2), as a schedule of jobs on ports
(`ir/port_schedule.py`, which lists the orders). A unit that crosses occupies the sending side of a NIC and the
receiving side of one at each host that wants it; where hosts hand it on, their sending sides too. Receivers on a host
that holds the slice have it from there, and what stays inside of a host occupies devices. A host with several NICs
takes each unit in by the one that has least to take in so far.
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
"""Ranks, each of which sends to the next."""
Port: TypeAlias = tuple[str, int]
"""A direction, of NICs or of devices, and the number of the NIC or the rank."""

_NEAR, _CUT_UNITS = 1.02, 30
"""Units are cut where their time is further above the bound, and where there are no more."""


@dataclass(frozen=True)
class Placed:
    """A value on the ranks of a mesh."""

    grid: Grid
    sharding: Sharding

    def boxes(self, shape: Sequence[int], part: int) -> dict[Box, list[int]]:
        """The slices of a part, none of them empty, with the ranks that have them."""
        found: dict[Box, list[int]] = {}
        timed = self.grid.is_over_time(self.sharding)
        for device, (rank, at) in enumerate(zip(self.grid.ranks, self.grid.parts, strict=True)):
            if at == (part if timed else 0):
                slices = local_slices(shape, self.sharding, self.grid.mesh, device)
                box = tuple((each.start, each.stop) for each in slices)
                if all(begin < end for begin, end in box):
                    found.setdefault(box, []).append(rank)
        return found


@dataclass(frozen=True)
class WantedSlice:
    """A slice that `holders` have and all of `receivers` want, in one part of time."""

    part: int
    box: Box
    holders: tuple[int, ...]
    receivers: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements the slice has."""
        return Task(self.part, self.box, 0, ()).elements


def units(
    shape: Sequence[int], source: Placed, target: Placed, at: Mapping[str, int] = MappingProxyType({})
) -> list[WantedSlice]:
    """
    The units of a transfer.

    Args:
        at: of temporal axes that are unrolled, the part that crosses.

    Raises:
        ValueError: the meshes share a rank or count time differently, or a value is partial over spatial axes.
    """
    _check(source, target)
    parts = sorted(target.grid.parts_at(at)) if target.grid.is_over_time(target.sharding) else [0]
    return [unit for part in parts for unit in _units(shape, part, source, target)]


def _check(source: Placed, target: Placed) -> None:
    if shared := sorted(set(source.grid.ranks) & set(target.grid.ranks)):
        raise ValueError(f"rank {shared[0]} is in both meshes, but every stage needs ranks of its own")
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
    Where ranks sit.

    Args:
        hosts: by rank, its host.
        nics: by rank, the number of the NIC that it uses, each of one host; none where hosts have one NIC.
    """

    hosts: Mapping[int, int]
    nics: Mapping[int, int] | None = None

    def nic(self, rank: int) -> int:
        """The NIC that a rank uses."""
        return self.hosts[rank] if self.nics is None else self.nics[rank]

    def ports(self, chain: Chain) -> tuple[Port, ...]:
        """What a slice occupies on its way along a chain: NICs, or devices where it stays inside of a host."""
        hops = list(itertools.pairwise(chain))
        if crossing := [(a, b) for a, b in hops if self.hosts[a] != self.hosts[b]]:
            ends = [(("nic out", self.nic(a)), ("nic in", self.nic(b))) for a, b in crossing]
        else:
            ends = [(("device out", a), ("device in", b)) for a, b in hops]
        return tuple(dict.fromkeys(itertools.chain.from_iterable(ends)))


def plan(
    given: Iterable[WantedSlice], sites: Sites, method: Method = "broadcast", order: Order = "best", seed: int = 0
) -> list[Task]:
    """
    The tasks of a transfer in the order of their start, part after part; of each, what stays inside of hosts first.

    Args:
        seed: of the random orders.
    """
    hosts = sites.hosts
    by_part: defaultdict[int, tuple[list[WantedSlice], list[WantedSlice]]] = defaultdict(lambda: ([], []))
    for unit in given if order == "naive" else itertools.chain.from_iterable(_kept_inside(u, hosts) for u in given):
        crosses = len({hosts[rank] for rank in (*unit.holders, *unit.receivers)}) > 1
        by_part[unit.part][crosses].append(unit)
    found: list[Task] = []
    for part in sorted(by_part):
        inside, crossing = by_part[part]
        arranged = [*_arranged(inside, sites, lambda rank: rank, order, seed), *_crossing(crossing, sites, order, seed)]
        found += (task for unit, chain in arranged for task in _METHODS[method](unit, chain, hosts))
    return found


def _kept_inside(unit: WantedSlice, hosts: Mapping[int, int]) -> Iterator[WantedSlice]:
    """The unit as one for each host that both holds and wants it, and one for all other receivers."""
    held = {hosts[rank] for rank in unit.holders}
    for host in sorted(held & {hosts[rank] for rank in unit.receivers}):
        holders, receivers = (tuple(r for r in ranks if hosts[r] == host) for ranks in (unit.holders, unit.receivers))
        yield replace(unit, holders=holders, receivers=receivers)
    if others := tuple(rank for rank in unit.receivers if hosts[rank] not in held):
        yield replace(unit, receivers=others)


def _crossing(given: Sequence[WantedSlice], sites: Sites, order: Order, seed: int) -> list[tuple[WantedSlice, Chain]]:
    """
    Units that go from host to host, arranged.

    Where whole units cannot come near the bound, for a NIC has one more of them to send than others, those that several
    NICs can send are cut into a piece for each of these, if that is faster.
    """
    whole = list(_arranged(given, sites, sites.nic, order, seed))
    if order not in ("best", "exact") or len(given) > _CUT_UNITS:
        return whole
    time = _time(whole, sites)
    if time <= _NEAR * least_nic_time(given, sites):
        return whole
    cut = [replace(unit, box=box) for unit in given for box in _pieces(unit.box, len({*map(sites.nic, unit.holders)}))]
    pieces = list(_arranged(cut, sites, sites.nic, order, seed))
    return pieces if _time(pieces, sites) * _NEAR < time else whole


def _time(arranged: Iterable[tuple[WantedSlice, Chain]], sites: Sites) -> int:
    return nic_time((Task(unit.part, unit.box, chain[0], chain[1:]) for unit, chain in arranged), sites)


def _arranged(
    given: Sequence[WantedSlice], sites: Sites, port_of: Callable[[int], int], order: Order, seed: int
) -> Iterator[tuple[WantedSlice, Chain]]:
    """
    Units in the order of their start, each with its sender and the receivers after it.

    Args:
        port_of: a rank; of the senders of which this is the same any will do.
    """
    numbers: dict[Port, int] = {}
    senders: list[list[list[int]]] = []
    jobs: list[Job] = []
    entries = _entries(given, sites)
    for unit, entry in zip(given, entries, strict=True):
        alike: dict[int, list[int]] = {}
        for rank in sorted(unit.holders):
            alike.setdefault(port_of(rank), []).append(rank)
        senders.append(list(alike.values()))
        chains = (_chain(unit, ranks[0], sites, entry) for ranks in alike.values())
        ports = (tuple(numbers.setdefault(port, len(numbers)) for port in sites.ports(chain)) for chain in chains)
        jobs.append(Job(unit.elements, tuple(ports)))
    sent: defaultdict[int, int] = defaultdict(int)
    for number, option in schedule(tuple(jobs), order, seed):
        unit, ranks = given[number], senders[number][option]
        sender = ranks[0] if order == "naive" else min(ranks, key=lambda rank: (sent[rank], rank))
        sent[sender] += unit.elements
        yield unit, _chain(unit, sender, sites, entries[number])


def _entries(given: Sequence[WantedSlice], sites: Sites) -> list[dict[int, int]]:
    """Of each unit the first receiver at each host: one at the NIC with least to take in so far, large units first."""
    taken: defaultdict[int, int] = defaultdict(int)
    found: list[dict[int, int]] = [{} for _ in given]
    for number in sorted(range(len(given)), key=lambda number: -given[number].elements):
        by_host: dict[int, list[int]] = {}
        for rank in given[number].receivers:
            by_host.setdefault(sites.hosts[rank], []).append(rank)
        for host, ranks in by_host.items():
            first = min(ranks, key=lambda rank: (taken[sites.nic(rank)], rank))
            taken[sites.nic(first)] += given[number].elements
            found[number][host] = first
    return found


def _chain(unit: WantedSlice, sender: int, sites: Sites, entries: Mapping[int, int]) -> Chain:
    """The sender, the receivers on its host, and those on one host after the other, each from its entry round."""

    def place(rank: int) -> tuple[bool, int, bool, int]:
        host = sites.hosts[rank]
        return host != sites.hosts[sender], host, rank < entries[host], rank

    return sender, *sorted(unit.receivers, key=place)


def nic_time(tasks: Iterable[Task], sites: Sites) -> int:
    """
    When the last task that crosses has arrived (equation 1), where a NIC takes an element in a unit of time.

    A task occupies its NICs all at once, from when the tasks before it have left them.
    """
    free: defaultdict[Port, int] = defaultdict(int)
    for task in tasks:
        ports = [port for port in sites.ports((task.sender, *task.receivers)) if port[0].startswith("nic")]
        end = max((free[port] for port in ports), default=0) + task.elements
        free.update(dict.fromkeys(ports, end))
    return max(free.values(), default=0)


def least_nic_time(given: Iterable[WantedSlice], sites: Sites) -> float:
    """
    The NIC bound: how many elements the busiest NIC has to send or to receive at least.

    Each host that wants a slice and does not hold it takes one copy in; one copy of what crosses leaves its holders.
    """
    sent: list[tuple[int, frozenset[int]]] = []
    received: list[tuple[int, frozenset[int]]] = []
    for unit in given:
        by_host: defaultdict[int, set[int]] = defaultdict(set)
        for rank in unit.receivers:
            by_host[sites.hosts[rank]].add(sites.nic(rank))
        into = by_host.keys() - {sites.hosts[rank] for rank in unit.holders}
        received += ((unit.elements, frozenset(by_host[host])) for host in sorted(into))
        if into:
            sent.append((unit.elements, frozenset(map(sites.nic, unit.holders))))
    return max(covering_load(sent), covering_load(received))


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
    """A piece to each receiver, which passes it on to the next, round to the one before it."""
    ring, pieces = unit.receivers, _pieces(unit.box, len(unit.receivers))
    chains = (ring[i:] + ring[:i] for i in range(len(ring)))
    return [Task(unit.part, piece, sender, chain) for piece, chain in zip(pieces, chains, strict=False)]


def _pieces(box: Box, count: int) -> list[Box]:
    """A slice in at most `count` pieces along its longest dim, none of them empty."""
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
