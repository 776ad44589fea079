"""
Plans of transfers between meshes: which rank sends which slice to whom, and in which order (cross-mesh 3).

A transfer falls into units, one for each slice that some ranks of the source hold and that the same ranks of the
target want: a unique slice of the source, cut where receivers want different parts of it. How a unit travels:

    broadcast         along a chain through all receivers, host by host: one copy goes to each host
    send_recv         from a sender to each receiver
    local_allgather   to each host in as many pieces as it has receivers, which pass theirs round among them
    global_allgather  in as many pieces as there are receivers, which pass theirs round among all

Hosts are what limits speed, so senders and order are chosen for them (3.2); receivers on a host that holds the slice
have it from there:

    naive       the first sender, in the order of the slices
    greedy      large units first, each from the host that has least to send so far (equation 4)
    randomized  senders as greedy; units that share no host together, as many as random orders find
    dfs         the best of all senders and orders that a number of steps of depth-first search with pruning finds
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import Literal, TypeAlias

from .sharding import Sharding, local_slices
from .unit_tasks import Grid, Task

Method: TypeAlias = Literal["broadcast", "send_recv", "local_allgather", "global_allgather"]
Order: TypeAlias = Literal["naive", "greedy", "randomized", "dfs"]
Box: TypeAlias = tuple[tuple[int, int], ...]
"""A slice of a global value: begin and end per dim."""

_TRIES = 20
"""Random orders that `randomized` looks at for each set of units."""

_STEPS = 20_000
"""How many partial orders `dfs` looks at."""


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


def plan(
    given: Iterable[WantedSlice],
    hosts: Mapping[int, int],
    method: Method = "broadcast",
    order: Order = "greedy",
    seed: int = 0,
) -> list[Task]:
    """
    The tasks of a transfer in the order of their start, part after part.

    Args:
        hosts: by rank, its host.
        seed: of the random orders.
    """
    by_part: dict[int, list[WantedSlice]] = {}
    for unit in given if order == "naive" else itertools.chain.from_iterable(_kept_inside(u, hosts) for u in given):
        by_part.setdefault(unit.part, []).append(unit)
    arrange = _ORDERS[order]
    arranged = (pair for part in sorted(by_part) for pair in arrange(by_part[part], hosts, Random(seed)))
    return [task for unit, sender in arranged for task in _METHODS[method](unit, sender, hosts)]


def _kept_inside(unit: WantedSlice, hosts: Mapping[int, int]) -> Iterator[WantedSlice]:
    """The unit as one for each host that both holds and wants it, and one for all other receivers."""
    held = {hosts[rank] for rank in unit.holders}
    for host in sorted(held & {hosts[rank] for rank in unit.receivers}):
        holders, receivers = (tuple(r for r in ranks if hosts[r] == host) for ranks in (unit.holders, unit.receivers))
        yield replace(unit, holders=holders, receivers=receivers)
    if others := tuple(rank for rank in unit.receivers if hosts[rank] not in held):
        yield replace(unit, receivers=others)


def crossings(tasks: Iterable[Task], hosts: Mapping[int, int]) -> int:
    """The elements that go from one host to another."""
    chains = ((task.elements, (task.sender, *task.receivers)) for task in tasks)
    return sum(n for n, chain in chains for a, b in itertools.pairwise(chain) if hosts[a] != hosts[b])


def least_crossings(given: Iterable[WantedSlice], hosts: Mapping[int, int]) -> int:
    """The elements that must go from one host to another: a copy for each receiving host that holds none."""
    return sum(
        unit.elements * len({hosts[r] for r in unit.receivers} - {hosts[r] for r in unit.holders}) for unit in given
    )


def seconds(arranged: Iterable[tuple[WantedSlice, int]], hosts: Mapping[int, int]) -> float:
    """
    When the last unit has arrived (equation 1), an element taking a second to leave or to reach a host.

    A unit occupies its sender's sending side and its receivers' receiving side, each from when all of them are free.
    """
    free: defaultdict[tuple[str, int], float] = defaultdict(float)
    for unit, sender in arranged:
        taken = _taken(unit, sender, hosts)
        end = max((free[side] for side in taken), default=0.0) + (unit.elements if taken else 0)
        free.update(dict.fromkeys(taken, end))
    return max(free.values(), default=0.0)


def _taken(unit: WantedSlice, sender: int, hosts: Mapping[int, int]) -> list[tuple[str, int]]:
    """The sides of hosts that a unit occupies; none where it stays inside of one."""
    into = {hosts[rank] for rank in unit.receivers} - {hosts[sender]}
    return [("out", hosts[sender]), *(("in", host) for host in sorted(into))] if into else []


Arranged: TypeAlias = list[tuple[WantedSlice, int]]
"""Units in order, each with its sender."""


def _naive(given: Sequence[WantedSlice], hosts: Mapping[int, int], random: Random) -> Arranged:
    return [(unit, min(unit.holders)) for unit in given]


def _greedy(given: Sequence[WantedSlice], hosts: Mapping[int, int], random: Random) -> Arranged:
    of_host: defaultdict[int, int] = defaultdict(int)
    of_rank: defaultdict[int, int] = defaultdict(int)
    found: Arranged = []
    for unit in sorted(given, key=lambda unit: -unit.elements):
        sender = min(unit.holders, key=lambda r: (of_host[hosts[r]], of_rank[r], r))
        of_host[hosts[sender]] += unit.elements * bool(_taken(unit, sender, hosts))
        of_rank[sender] += unit.elements
        found.append((unit, sender))
    return found


def _randomized(given: Sequence[WantedSlice], hosts: Mapping[int, int], random: Random) -> Arranged:
    left: Arranged = _greedy(given, hosts, random)
    found: Arranged = []
    while left:
        tries = [_disjoint(random.sample(left, len(left)), hosts) for _ in range(_TRIES)]
        best = max(tries, key=_devices)
        found += best
        left = [pair for pair in left if pair not in best]
    return found


def _devices(pairs: Arranged) -> int:
    """How many devices take part."""
    return sum(len(unit.receivers) + 1 for unit, _ in pairs)


def _disjoint(pairs: Iterable[tuple[WantedSlice, int]], hosts: Mapping[int, int]) -> Arranged:
    """Those pairs that share no side of a host with one before them."""
    busy = set[tuple[str, int]]()
    found: Arranged = []
    for unit, sender in pairs:
        taken = _taken(unit, sender, hosts)
        if busy.isdisjoint(taken):
            busy.update(taken)
            found.append((unit, sender))
    return found


def _dfs(given: Sequence[WantedSlice], hosts: Mapping[int, int], random: Random) -> Arranged:
    """Begin with the best that the others find, and look for better ones."""
    first = min((_greedy(given, hosts, random), _randomized(given, hosts, random)), key=lambda p: seconds(p, hosts))
    best, least, steps = first, seconds(first, hosts), 0
    pending: list[tuple[Arranged, tuple[WantedSlice, ...]]] = [([], tuple(given))]
    while pending and steps < _STEPS:
        steps += 1
        done, left = pending.pop()
        if not left:
            if (time := seconds(done, hosts)) < least:
                best, least = done, time
            continue
        for index, unit in enumerate(left):
            for sender in _one_of_each_host(unit, hosts):
                tried = [*done, (unit, sender)]
                if seconds(tried, hosts) < least:
                    pending.append((tried, (*left[:index], *left[index + 1 :])))
    return best


def _one_of_each_host(unit: WantedSlice, hosts: Mapping[int, int]) -> list[int]:
    return list({hosts[rank]: rank for rank in reversed(unit.holders)}.values())


def _broadcast(unit: WantedSlice, sender: int, hosts: Mapping[int, int]) -> list[Task]:
    chain = sorted(unit.receivers, key=lambda rank: (hosts[rank] != hosts[sender], hosts[rank], rank))
    return [Task(unit.part, unit.box, sender, tuple(chain))]


def _send_recv(unit: WantedSlice, sender: int, hosts: Mapping[int, int]) -> list[Task]:
    return [Task(unit.part, unit.box, sender, (rank,)) for rank in unit.receivers]


def _local_allgather(unit: WantedSlice, sender: int, hosts: Mapping[int, int]) -> list[Task]:
    by_host: dict[int, list[int]] = {}
    for rank in unit.receivers:
        by_host.setdefault(hosts[rank], []).append(rank)
    rings = (replace(unit, receivers=tuple(ranks)) for _, ranks in sorted(by_host.items()))
    return [task for ring in rings for task in _passed_round(ring, sender)]


def _global_allgather(unit: WantedSlice, sender: int, hosts: Mapping[int, int]) -> list[Task]:
    ring = tuple(sorted(unit.receivers, key=lambda rank: (hosts[rank], rank)))
    return _passed_round(replace(unit, receivers=ring), sender)


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


_ORDERS: dict[Order, Callable[[Sequence[WantedSlice], Mapping[int, int], Random], Arranged]] = {
    "naive": _naive,
    "greedy": _greedy,
    "randomized": _randomized,
    "dfs": _dfs,
}
_METHODS: dict[Method, Callable[[WantedSlice, int, Mapping[int, int]], list[Task]]] = {
    "broadcast": _broadcast,
    "send_recv": _send_recv,
    "local_allgather": _local_allgather,
    "global_allgather": _global_allgather,
}
