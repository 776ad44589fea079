"""
Find the wires of a cluster, which collectives fill: the streams of groups of axes, and the ports of the network.

In the simulator collectives over one group of axes take turns. Collectives over different groups may run at once, but
they share ports (`simulation/network.py`): at any time

    sum over groups a under way of  rate_a load_pa  <=  1        for each port p

where a collective at the rate 1 takes its seconds free of latency. So the sum over all collectives of `load_pa` times
these seconds is a lower bound of the step, as the sum over one stream is. `load_pa` is the load of p by the rings of
all groups of `a`, relative to the load of their busiest port. Measured seconds include an unknown latency: with them
only streams count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from typing import NamedTuple

from ...ir.cluster import Cluster
from ...ir.mesh import Mesh
from ..analysis.simulation.places import Routes
from ..analysis.step_prices import Axes

_SAME = 1e-12
"""Loads that differ by at most this part are equal."""


class Wire(NamedTuple):
    """A stream or a port, with the part of it that collectives over each group of axes fill."""

    loads: tuple[tuple[Axes, float], ...]

    @property
    def name(self) -> str:
        """`node gpu` for the stream of these axes, `node + node gpu` for a port that both pass."""
        return " + ".join(" ".join(axes) for axes, _ in self.loads)

    def load(self, axes: Axes) -> float:
        """Return the part that collectives over `axes` fill."""
        return next((load for each, load in self.loads if each == axes), 0.0)

    def covers(self, other: Wire) -> bool:
        """Return whether each group fills at least as much of this wire as of the other, so that this bounds better."""
        return all(self.load(axes) >= load for axes, load in other.loads)


def streams(mesh: Mesh) -> list[Axes]:
    """Return the groups of axes that a collective can have."""
    names = [axis.name for axis in mesh.spatial if axis.size > 1]
    return [axes for count in range(1, len(names) + 1) for axes in combinations(names, count)]


def wires_of(cluster: Cluster) -> tuple[Wire, ...]:
    """Return the wires of a cluster that no other wire covers."""
    every = [Wire(((axes, 1.0),)) for axes in streams(cluster.mesh)]
    if not any(link.points for link in cluster.links):
        every += _ports(cluster)
    found: list[Wire] = []
    for wire in sorted(dict.fromkeys(every), key=lambda each: -sum(load for _, load in each.loads)):
        if not any(other.covers(wire) for other in found):
            found.append(wire)
    return tuple(found)


def _ports(cluster: Cluster) -> Iterator[Wire]:
    """Yield a wire for each port that several groups of axes pass."""
    routes = Routes(cluster)
    by_port: defaultdict[str, list[tuple[Axes, float]]] = defaultdict(list)
    for axes in streams(cluster.mesh):
        passing = _passing(cluster, axes, routes)
        most = max(passing.values(), default=0.0)
        for port, seconds in passing.items():
            if seconds:
                by_port[port].append((axes, seconds / most if seconds < most * (1.0 - _SAME) else 1.0))
    yield from (Wire(tuple(loads)) for loads in by_port.values() if len(loads) > 1)


def _passing(cluster: Cluster, axes: Axes, routes: Routes) -> Mapping[str, float]:
    """Map ports to the seconds they take to send a byte from each rank to the next, round all groups of some axes."""
    found: defaultdict[str, float] = defaultdict(float)
    for group in cluster.mesh.groups(axes):
        for sender, receiver in pairwise((*group, group[0])):
            route = routes.between(sender, receiver)
            for port, bandwidth in zip(route.ports, route.capacities, strict=True):
                found[port] += 1.0 / bandwidth
    return found
