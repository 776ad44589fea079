"""
The cost of collectives on a topology.

All groups of an axis run a collective at once. What they send through each port follows from how it is carried out:

    all_gather, reduce_scatter  (k-1)/k of the value goes round a group of k, in rings that enter and leave each host by
                                another of the NICs that the group has there
    all_reduce                  twice that
    all_reduce:tree             to the root and back, in trees of hosts, one for each NIC, that are chains on each host;
                                two of them with half the value each, so that who is a leaf in one is none in the other
    all_reduce:switch likewise, but the switch of a host adds up what its devices send, and sends the sum to all
    broadcast the full value goes round all_to_all each sends 1/k of what it holds to every other

The port with the most to do sets the seconds per byte: of a NIC that eight groups share each has an eighth, and of
wires of different speed the slowest counts. A message that is too small for that takes a step per device of a ring;
an all-reduce and a broadcast may go along a tree, with as many steps as it has levels. (The load of trees, and their
chains on hosts, are as NCCL's: `benchmarks/nccl_tables.py` compares with its tables.)
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TypeAlias, TypeVar

from .topology import Port, Seat, Topology

_T = TypeVar("_T")

Group: TypeAlias = tuple[int, ...]
"""Ranks that communicate with one another."""

Loads: TypeAlias = Mapping[str, float]
"""By port, what passes it, as a part of the value."""

_TURNS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "all_reduce:ring": 2}
_TREES = ("all_reduce:tree", "all_reduce:switch")


@lru_cache(maxsize=4096)
def topology_costs(topology: Topology, kind: str, groups: tuple[Group, ...]) -> tuple[float, float]:
    """
    (seconds, seconds per byte of the full value) of a collective, or `broadcast`, that all `groups` run at once.

    They are of one size, at least 2.
    """
    count, loads_of = len(groups[0]), _LOADS.get(kind, _rings)
    share = _TURNS[kind] * (count - 1) / count if kind in _TURNS else 1.0
    used = [(port, share * load) for port, load in _busiest(topology, loads_of, groups)]
    beta = max(load / (port.bandwidth * port.level.part_reached(kind.split(":")[0])) for port, load in used)
    start = max(port.level.start for port, _ in used)
    return start + max(_steps(topology, kind, group) for group in _unlike(topology, groups)), beta


@lru_cache(maxsize=4096)
def _busiest(
    topology: Topology, loads_of: Callable[[Topology, tuple[Group, ...]], Loads], groups: tuple[Group, ...]
) -> Sequence[tuple[Port, float]]:
    """Return, for each bandwidth and level, the port with the largest load."""
    found: dict[tuple[float, str], tuple[Port, float]] = {}
    ports = topology.ports
    for name, load in loads_of(topology, groups).items():
        port = ports[name]
        key = (port.bandwidth, port.level.name)
        if key not in found or load > found[key][1]:
            found[key] = (port, load)
    return list(found.values())


@lru_cache(maxsize=4096)
def _unlike(topology: Topology, groups: tuple[Group, ...]) -> Sequence[Group]:
    """Return one group of each form: ranks on as many hosts, with NICs and wires of equal latencies in one order."""
    found: dict[object, Group] = {}
    for group in groups:
        hosts: dict[int, int] = {}
        nics: dict[tuple[int, int], int] = {}
        form: list[object] = []
        for seat in map(topology.seat, sorted(group)):
            wires = (*seat.inside[:1], *seat.out[:1])
            latencies = tuple(topology.ports[name].level.latency for name in wires)
            nic = nics.setdefault((seat.host, seat.nic), len(nics))
            form.append((hosts.setdefault(seat.host, len(hosts)), nic, latencies))
        found.setdefault(tuple(form), group)
    return list(found.values())


def _rings(topology: Topology, groups: Iterable[Group]) -> Loads:
    loads: defaultdict[str, float] = defaultdict(float)
    for group in groups:
        orders = list(_orders(topology, group))
        for sender, receiver in itertools.chain.from_iterable(map(_around, orders)):
            for name in topology.way(sender, receiver):
                loads[name] += 1 / len(orders)
    return loads


def _trees(topology: Topology, groups: Iterable[Group], *, chained: bool) -> Loads:
    """Two trees of hosts, of which the second begins with the next host, for each NIC that a host has."""
    loads: defaultdict[str, float] = defaultdict(float)
    for group in groups:
        hosts = _by_host(topology, group)
        roots = [list({topology.seat(rank).nic: rank for rank in ranks}.values()) for ranks in hosts]
        rings = min(map(len, roots)) if len(hosts) > 1 else 1
        for tree, ring in itertools.product(range(2), range(rings)):
            heads = [each[ring] for each in _turned(roots, tree)]
            edges = [(head, heads[(at - 1) // 2]) for at, head in enumerate(heads) if at]
            for ranks, head in zip(_turned(hosts, tree), heads, strict=True):
                if chained:
                    edges += itertools.pairwise(_turned(ranks, ranks.index(head)))
                else:
                    for name in (name for rank in ranks for name in topology.seat(rank).inside):
                        loads[name] += 0.5 / rings
            for name in itertools.chain.from_iterable(topology.way(*pair) for e in edges for pair in (e, e[::-1])):
                loads[name] += 0.5 / rings
    return loads


def _orders(topology: Topology, group: Group) -> Iterator[list[int]]:
    """The rings of a group, the ranks of a host together: one for each NIC that it has on every host."""
    hosts = _by_host(topology, group)
    # By NIC the last rank that uses it: where the ring leaves the host.
    leaving = [list({topology.seat(rank).nic: at for at, rank in enumerate(ranks)}.values()) for ranks in hosts]
    for ring in range(min(map(len, leaving)) if len(hosts) > 1 else 1):
        turned = (_turned(ranks, last[ring] + 1) for ranks, last in zip(hosts, leaving, strict=True))
        yield list(itertools.chain.from_iterable(turned))


def _turned(order: list[_T], first: int) -> list[_T]:
    return order[first:] + order[:first]


def _by_host(topology: Topology, group: Group) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for rank in sorted(group):
        found.setdefault(topology.seat(rank).host, []).append(rank)
    return list(found.values())


def _around(ring: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each rank with the next."""
    return zip(ring, [*ring[1:], ring[0]], strict=True)


def _to_all(topology: Topology, groups: Iterable[Group]) -> Loads:
    loads: defaultdict[str, float] = defaultdict(float)
    for group in groups:
        seats = [topology.seat(rank) for rank in group]
        on_host, on_switch = _counted(seat.host for seat in seats), _counted(seat.switch for seat in seats)
        for seat in seats:
            for names, partners in _partners(seat, on_host[seat.host], on_switch[seat.switch], len(group)):
                for name in names if partners else ():
                    loads[name] += partners / len(group)
    return loads


def _partners(seat: Seat, host: int, switch: int, everywhere: int) -> Iterator[tuple[tuple[str, ...], int]]:
    """The ports of a seat, with how many others it exchanges with through them."""
    yield seat.inside, host - 1
    yield seat.out, everywhere - host
    yield seat.up, everywhere - switch


def _counted(numbers: Iterable[int]) -> Mapping[int, int]:
    counts: defaultdict[int, int] = defaultdict(int)
    for number in numbers:
        counts[number] += 1
    return counts


_LOADS: Mapping[str, Callable[[Topology, tuple[Group, ...]], Loads]] = {
    "all_to_all": _to_all,
    "all_reduce:tree": partial(_trees, chained=True),
    "all_reduce:switch": partial(_trees, chained=False),
}
"""Functions that give the load of each port, by kind of collective; the others go in rings."""


def _steps(topology: Topology, kind: str, group: Group) -> float:
    """Seconds of a message that takes no time to send."""
    around = [topology.latency(*pair) for pair in _around(next(_orders(topology, group)))]
    if kind == "all_to_all":
        return max(around)
    chain = sum(around) - max(around)
    if kind in ("all_gather", "reduce_scatter", "all_reduce:ring"):
        return _TURNS[kind] * chain if kind == "all_reduce:ring" else chain
    if kind in _TREES:
        return 2 * _tree(topology, group, chained=kind == "all_reduce:tree")
    return _TURNS.get(kind, 1) * min(chain, _tree(topology, group, chained=True))


def _tree(topology: Topology, group: Group, *, chained: bool) -> float:
    """Seconds from the root to the leaves: a tree of hosts, and a chain on each, or a step to its switch."""
    hosts = _by_host(topology, group)
    across = max((topology.latency(a[0], b[0]) for a, b in itertools.pairwise(hosts)), default=0.0)
    steps = ((len(ranks) - 1 if chained else 1) * topology.latency(*ranks[:2]) for ranks in hosts if len(ranks) > 1)
    inside = max(steps, default=0.0)
    return across * math.ceil(math.log2(len(hosts))) + inside
