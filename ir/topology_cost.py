"""
The cost of collectives on a topology.

All groups of an axis run a collective at once. The load of each port follows from the algorithm:

    all_gather, reduce_scatter  (k-1)/k of the value goes round a group of k, in one ring for each NIC that the group
                                has on every host; a ring enters and leaves a host by its NIC
    all_reduce                  twice that
    all_reduce:tree             to the root and back, in two trees of hosts for each NIC, with a chain on each host;
                                each tree takes half the value, and a leaf of one tree is an inner host of the other
    all_reduce:switch           as a tree, but the switch of a host sums its devices' values and sends the sum to all
    broadcast                   the full value goes round
    all_to_all                  each rank sends 1/k of its data to every other rank

The busiest port determines the seconds per byte: each of eight groups that share a NIC gets an eighth of it, and the
slowest of several wires counts. A small message takes a step per device of a ring; an all-reduce or a broadcast may
use a tree, with a step per level. (The load of trees, and their chains on hosts, follow NCCL:
`benchmarks/nccl_tables.py` compares with its tables.)
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
"""Ranks that communicate with each other."""

Loads: TypeAlias = Mapping[str, float]
"""The load of each port, as a fraction of the value."""

_TURNS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "all_reduce:ring": 2}
_TREES = ("all_reduce:tree", "all_reduce:switch")


@lru_cache(maxsize=4096)
def topology_costs(topology: Topology, kind: str, groups: tuple[Group, ...]) -> tuple[float, float]:
    """
    Return (seconds, seconds per byte of the full value) of a collective, or `broadcast`, that all `groups` run at once.

    All groups have the same size, at least 2.
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
    busiest: dict[tuple[float, str], tuple[Port, float]] = {}
    ports = topology.ports
    for name, load in loads_of(topology, groups).items():
        port = ports[name]
        key = (port.bandwidth, port.level.name)
        if key not in busiest or load > busiest[key][1]:
            busiest[key] = (port, load)
    return list(busiest.values())


@lru_cache(maxsize=4096)
def _unlike(topology: Topology, groups: tuple[Group, ...]) -> Sequence[Group]:
    """Return one group of each form: equal forms have as many hosts and NICs, and equal latencies, in one order."""
    by_form: dict[object, Group] = {}
    for group in groups:
        hosts: dict[int, int] = {}
        nics: dict[tuple[int, int], int] = {}
        form: list[object] = []
        for seat in map(topology.seat, sorted(group)):
            latencies = tuple(topology.ports[name].level.latency for name in (*seat.inside[:1], *seat.out[:1]))
            nic = nics.setdefault((seat.host, seat.nic), len(nics))
            form.append((hosts.setdefault(seat.host, len(hosts)), nic, latencies))
        by_form.setdefault(tuple(form), group)
    return list(by_form.values())


def _rings(topology: Topology, groups: Iterable[Group]) -> Loads:
    loads: defaultdict[str, float] = defaultdict(float)
    for group in groups:
        orders = list(_orders(topology, group))
        for sender, receiver in itertools.chain.from_iterable(map(_around, orders)):
            for name in topology.way(sender, receiver):
                loads[name] += 1 / len(orders)
    return loads


def _trees(topology: Topology, groups: Iterable[Group], *, chained: bool) -> Loads:
    """Return the load of two trees of hosts for each NIC that a host has; the second tree begins with the next host."""
    loads: defaultdict[str, float] = defaultdict(float)
    for group in groups:
        hosts = _by_host(topology, group)
        roots = [list({topology.seat(rank).nic: rank for rank in ranks}.values()) for ranks in hosts]
        rings = min(map(len, roots)) if len(hosts) > 1 else 1
        for tree, ring in itertools.product(range(2), range(rings)):
            heads = [nic_roots[ring] for nic_roots in _turned(roots, tree)]
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
    """Yield the rings of a group, one for each NIC that it has on every host, with the ranks of a host together."""
    hosts = _by_host(topology, group)
    # For each NIC, the last rank that uses it: the ring leaves the host there.
    leaving = [list({topology.seat(rank).nic: at for at, rank in enumerate(ranks)}.values()) for ranks in hosts]
    for ring in range(min(map(len, leaving)) if len(hosts) > 1 else 1):
        turned = (_turned(ranks, last[ring] + 1) for ranks, last in zip(hosts, leaving, strict=True))
        yield list(itertools.chain.from_iterable(turned))


def _turned(order: list[_T], first: int) -> list[_T]:
    return order[first:] + order[:first]


def _by_host(topology: Topology, group: Group) -> list[list[int]]:
    by_host: dict[int, list[int]] = {}
    for rank in sorted(group):
        by_host.setdefault(topology.seat(rank).host, []).append(rank)
    return list(by_host.values())


def _around(ring: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return the pairs of neighbours in a ring."""
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
    """Yield the ports of a seat, with the number of ranks that it exchanges data with through them."""
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
"""Functions that return the load of each port, by kind of collective; all other kinds use rings."""


def _steps(topology: Topology, kind: str, group: Group) -> float:
    """Return the seconds of a message of size 0."""
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
    """Return the seconds from the root to the leaves: a tree of hosts, then a chain on each or a step to its switch."""
    hosts = _by_host(topology, group)
    across = max((topology.latency(a[0], b[0]) for a, b in itertools.pairwise(hosts)), default=0.0)
    steps = ((len(ranks) - 1 if chained else 1) * topology.latency(*ranks[:2]) for ranks in hosts if len(ranks) > 1)
    return across * math.ceil(math.log2(len(hosts))) + max(steps, default=0.0)
