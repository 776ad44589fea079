"""A cluster on which splitting pays even for models of a few thousand numbers."""

from dataclasses import replace

from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.ir.topology import Host, Level, Topology


def split_cluster(mesh: Mesh) -> Cluster:
    """Slow devices on fast links: what is not split costs more than any collective."""
    device = Device("slow", (("float32", 1e8), ("float64", 5e7)), 1e8, 1e9)
    links = tuple(Link(axis.name, 1e-7, 1e-8) for axis in mesh.axes)
    return Cluster("split", mesh, (device,), (0,) * mesh.device_count, links)


def launching_cluster(mesh: Mesh) -> Cluster:
    """The same, where launching an op takes time, so that updates of a few parameters are joined."""
    cluster = split_cluster(mesh)
    return replace(cluster, devices=tuple(replace(device, launch=1e-5) for device in cluster.devices))


def unequal_cluster(mesh: Mesh) -> Cluster:
    """The same, but that the last device is a third as fast as the others."""
    cluster = split_cluster(mesh)
    (fast,) = cluster.devices
    rates = tuple((dtype, rate / 3) for dtype, rate in fast.flops)
    slow = replace(fast, kind="slower", flops=rates, memory_bandwidth=fast.memory_bandwidth / 3)
    last = mesh.device_count - 1
    return replace(cluster, devices=(fast, slow), placement=tuple(int(rank == last) for rank in range(last + 1)))


def one_useless_cluster(mesh: Mesh) -> Cluster:
    """The slow devices, but for the first, which is so much slower that every step is faster without it."""
    cluster = split_cluster(mesh)
    (device,) = cluster.devices
    rates = tuple((dtype, rate / 1e3) for dtype, rate in device.flops)
    useless = replace(device, kind="useless", flops=rates, memory_bandwidth=device.memory_bandwidth / 1e3)
    placement = (1, *(0,) * (mesh.device_count - 1))
    return replace(cluster, devices=(device, useless), placement=placement)


def mixed_cluster(mesh: Mesh) -> Cluster:
    """The same, but for the last device, which takes three times as long."""
    slow = Device("slow", (("float32", 1e8), ("float64", 5e7)), 1e8, 1e9)
    fast = Device("fast", (("float32", 3e8), ("float64", 15e7)), 3e8, 1e9)
    links = tuple(Link(axis.name, 1e-7, 1e-8) for axis in mesh.axes)
    return Cluster("mixed", mesh, (fast, slow), (*(0,) * (mesh.device_count - 1), 1), links)


def hosts_cluster(mesh: Mesh) -> Cluster:
    """The slow devices on hosts, of as many as the last axis has, whose NICs are far slower than what is inside."""
    inside = mesh.spatial[-1].size
    levels = (Level("wire", 1e-6, 1e9), Level("nic", 1e-4, 1e7))
    hosts = (Host(inside, "wire", "nic", count=mesh.device_count // inside),)
    return replace(split_cluster(mesh), name="hosts", links=(), topology=Topology(levels, hosts))
