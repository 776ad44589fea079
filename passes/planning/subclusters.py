"""The parts of a cluster that a step may run on by itself, while the other devices idle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...ir.cluster import Cluster, Device
from ...ir.mesh import Axis, Mesh
from ...ir.submesh import subcluster, submesh
from ...ir.topology import Topology
from .layouts import AXES


def parts_of_cluster(
    cluster: Cluster, seconds: Mapping[Device, float], lasting: int = 0
) -> list[tuple[tuple[int, ...], Cluster]]:
    """
    Return the parts of a cluster that a step may run on, the smallest first: the ranks and the cluster of each.

    A part leaves out all devices that are slower than some kind. It takes the fastest of the remaining hosts, or the
    hosts with the fastest network: all, a power of two, or all but the slowest. Further parts take devices of the
    fastest host in the same way.

    Args:
        seconds: for each kind of device, the seconds that one device takes for the step.
        lasting: bytes that the devices of a part must have together; other parts are left out.
    """
    found = {tuple(sorted(ranks)) for ranks in _choices(cluster, seconds)}
    found.discard(tuple(range(cluster.mesh.device_count)))
    parts = ((ranks, part_of_cluster(cluster, ranks)) for ranks in sorted(found, key=lambda ranks: (len(ranks), ranks)))
    return [(ranks, part) for ranks, part in parts if part is not None and total_memory(part) >= lasting]


def total_memory(cluster: Cluster) -> float:
    """Return the memory of all devices together, in bytes."""
    return sum(cluster.device(rank).memory for rank in range(cluster.mesh.device_count))


def _choices(cluster: Cluster, seconds: Mapping[Device, float]) -> Iterator[Sequence[int]]:
    speeds = [1.0 / max(seconds[cluster.device(rank)], 1e-12) for rank in range(cluster.mesh.device_count)]
    topology = cluster.topology
    for least in sorted(set(speeds)):
        hosts: dict[int, list[int]] = {}
        for rank, speed in enumerate(speeds):
            if speed >= least:
                hosts.setdefault(topology.seat(rank).host if topology is not None else 0, []).append(rank)
        by_speed: dict[tuple[int, ...], float] = {
            tuple(ranks): sum(speeds[rank] for rank in ranks) for ranks in hosts.values()
        }
        by_network = {ranks: _network_bandwidth(topology, ranks) for ranks in by_speed}
        fastest = max(by_speed, key=lambda ranks: by_speed[ranks])
        alone: dict[tuple[int, ...], float] = {(rank,): speeds[rank] for rank in fastest}
        for values in (alone, by_speed, by_network):
            # Hosts with equal networks are taken in the order of their speed.
            members = sorted(values, key=lambda ranks: (-values[ranks], -sum(speeds[rank] for rank in ranks)))
            for count in _counts([values[ranks] for ranks in members]):
                yield [rank for ranks in members[:count] for rank in ranks]


def _network_bandwidth(topology: Topology | None, ranks: Sequence[int]) -> float:
    """Return the bytes per second that a host sends to others; 1 if that is unknown."""
    if topology is None:
        return 1.0
    ports = {port for rank in ranks for port in topology.seat(rank).out}
    return sum(topology.ports[port].bandwidth for port in ports)


def _counts(speeds: Sequence[float]) -> list[int]:
    """Return the powers of two below the length, the length, and the length less one if the last member is slower."""
    most = len(speeds)
    powers = [2**power for power in range(most.bit_length()) if 2**power < most]
    return [*powers, *([most - 1] if speeds[-1] < speeds[0] else []), most]


def part_of_cluster(cluster: Cluster, ranks: tuple[int, ...]) -> Cluster | None:
    """Return some ranks as a cluster, or None if the links between them are unknown."""
    own = cluster.mesh
    if cluster.topology is None:
        # Only the links along axes are known.
        is_run = ranks == tuple(range(ranks[0], ranks[0] + len(ranks)))
        mesh = submesh(own, ranks[0], len(ranks), own.name) if is_run else None
        if mesh is None and len(own.spatial) == 1:
            mesh = Mesh((Axis(own.spatial[0].name, len(ranks)),), own.name)
        return subcluster(cluster, mesh, ranks) if mesh is not None else None
    hosts: dict[int, int] = {}
    for rank in ranks:
        host = cluster.topology.seat(rank).host
        hosts[host] = hosts.get(host, 0) + 1
    names = own.names if len(own.spatial) == 2 else AXES
    inside = next(iter(hosts.values()))
    if len(hosts) > 1 and inside > 1 and set(hosts.values()) == {inside}:
        mesh = Mesh((Axis(names[0], len(hosts)), Axis(names[1], inside)), own.name)
    else:
        mesh = Mesh((Axis(own.spatial[-1].name, len(ranks)),), own.name)
    return subcluster(cluster, mesh, ranks)
