"""
Find the wires of a cluster, which collectives fill: the streams of groups of axes, and the ports of the network.

In the simulator the collectives over one group of axes take turns. Collectives over different groups may run at once,
but they share ports (`simulation/network.py`): at any time

    sum over groups a under way of  rate_a load_pa  <=  1        for each port p

where a collective at the rate 1 takes its seconds without latency, and load_pa is the load of p by the rings of all
groups of `a`, relative to the load of their busiest port. So the sum over all collectives of load_pa times these
seconds is a lower bound of the step, like the sum over one stream. Measured seconds include an unknown latency, so a
cluster with measurements has only streams.
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
    """A stream or a port; `loads` holds the part of it that collectives over each group of axes fill."""

    loads: tuple[tuple[Axes, float], ...]

    @property
    def name(self) -> str:
        """Return the name: `node gpu` for the stream of these axes, `node + node gpu` for a port that both pass."""
        return " + ".join(" ".join(axes) for axes, _ in self.loads)

    def load(self, axes: Axes) -> float:
        """Return the part that collectives over `axes` fill."""
        return next((load for group, load in self.loads if group == axes), 0.0)

    def covers(self, other: Wire) -> bool:
        """Return whether each group fills at least as much of this wire as of the other, so that this bounds better."""
        return all(self.load(axes) >= load for axes, load in other.loads)


def streams(mesh: Mesh) -> list[Axes]:
    """Return the groups of axes that a collective can have."""
    names = [axis.name for axis in mesh.spatial if axis.size > 1]
    return [axes for count in range(1, len(names) + 1) for axes in combinations(names, count)]


def wires_of(cluster: Cluster) -> tuple[Wire, ...]:
    """Return the wires of a cluster that no other wire covers."""
    wires = [Wire(((axes, 1.0),)) for axes in streams(cluster.mesh)]
    if not any(link.points for link in cluster.links):
        wires += _ports(cluster)
    uncovered: list[Wire] = []
    for wire in sorted(dict.fromkeys(wires), key=lambda candidate: -sum(load for _, load in candidate.loads)):
        if not any(other.covers(wire) for other in uncovered):
            uncovered.append(wire)
    return tuple(uncovered)


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
    """Return the seconds that each port takes to send a byte from each rank to the next, round all groups of `axes`."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for group in cluster.mesh.groups(axes):
        for sender, receiver in pairwise((*group, group[0])):
            route = routes.between(sender, receiver)
            for port, bandwidth in zip(route.ports, route.capacities, strict=True):
                seconds[port] += 1.0 / bandwidth
    return seconds
