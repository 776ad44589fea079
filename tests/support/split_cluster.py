"""Clusters where splitting pays even for models of a few thousand numbers."""

from dataclasses import replace

from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.ir.topology import Host, Level, Topology


def split_cluster(mesh: Mesh) -> Cluster:
    """Return slow devices on fast links: replicated compute costs more than any collective."""
    device = Device("slow", (("float32", 1e8), ("float64", 5e7)), 1e8, 1e9)
    links = tuple(Link(axis.name, 1e-7, 1e-8) for axis in mesh.axes)
    return Cluster("split", mesh, (device,), (0,) * mesh.device_count, links)


def launching_cluster(mesh: Mesh) -> Cluster:
    """Return a split cluster with a launch time per op, so that updates of several parameters are joined."""
    cluster = split_cluster(mesh)
    return replace(cluster, devices=tuple(replace(device, launch=1e-5) for device in cluster.devices))


def unequal_cluster(mesh: Mesh) -> Cluster:
    """Return a split cluster whose last device has a third of the speed of the others."""
    cluster = split_cluster(mesh)
    (fast,) = cluster.devices
    rates = tuple((dtype, rate / 3) for dtype, rate in fast.flops)
    slow = replace(fast, kind="slower", flops=rates, memory_bandwidth=fast.memory_bandwidth / 3)
    last = mesh.device_count - 1
    return replace(cluster, devices=(fast, slow), placement=tuple(int(rank == last) for rank in range(last + 1)))


def one_useless_cluster(mesh: Mesh) -> Cluster:
    """Return a split cluster whose first device is so slow that every step is faster without it."""
    cluster = split_cluster(mesh)
    (device,) = cluster.devices
    rates = tuple((dtype, rate / 1e3) for dtype, rate in device.flops)
    useless = replace(device, kind="useless", flops=rates, memory_bandwidth=device.memory_bandwidth / 1e3)
    placement = (1, *(0,) * (mesh.device_count - 1))
    return replace(cluster, devices=(device, useless), placement=placement)


def mixed_cluster(mesh: Mesh) -> Cluster:
    """Return a cluster with the last device three times as fast as the others."""
    slow = Device("slow", (("float32", 1e8), ("float64", 5e7)), 1e8, 1e9)
    fast = Device("fast", (("float32", 3e8), ("float64", 15e7)), 3e8, 1e9)
    links = tuple(Link(axis.name, 1e-7, 1e-8) for axis in mesh.axes)
    return Cluster("mixed", mesh, (fast, slow), (*(0,) * (mesh.device_count - 1), 1), links)


def hosts_cluster(mesh: Mesh) -> Cluster:
    """Return a split cluster of hosts, one per group of the last axis, with NICs far slower than the inner links."""
    inside = mesh.spatial[-1].size
    levels = (Level("wire", 1e-6, 1e9), Level("nic", 1e-4, 1e7))
    hosts = (Host(inside, "wire", "nic", count=mesh.device_count // inside),)
    return replace(split_cluster(mesh), name="hosts", links=(), topology=Topology(levels, hosts))
