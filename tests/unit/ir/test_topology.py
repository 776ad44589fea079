"""Topologies: places of ranks, shared ports, and costs of collectives; expected numbers are computed by hand."""

import math
from dataclasses import replace

import pytest

from shardwright.ir.cluster import Cluster, Device
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh
from shardwright.ir.topology import Host, Level, Switch, Topology

NVLINK, NIC = Level("nvlink", 1e-6, 100.0), Level("nic", 10e-6, 8.0)
SLOW = Level("slow", 20e-6, 2.0)
BUS = Level("bus", 2e-6, 50.0, shared=True)

REDUCE, GATHER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
SCATTER, TO_ALL = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL


def hosts(count: int = 2, devices: int = 8, nics: int = 1, inside: Level = NVLINK, **more: object) -> Topology:
    """Return a topology of equal hosts."""
    host = Host(devices, inside.name, "nic", nics, count)
    return Topology((inside, NIC), (host,), **more)  # pyright: ignore[reportArgumentType]


def cluster(topology: Topology, **axes: int) -> Cluster:
    """Return a cluster of one kind of device."""
    mesh = Mesh.of(**axes)
    return Cluster(
        "c", mesh, (Device("d", (("float32", 1.0),), 1.0, 1.0),), (0,) * mesh.device_count, (), topology=topology
    )


def beta(where: Cluster, kind: CollectiveKind, *axes: str) -> float:
    """Return the seconds per byte of the full value."""
    return where.collective_costs(kind, axes)[1]


def test_inside_a_host_each_device_has_its_own_wire():
    inside = cluster(hosts(), node=2, gpu=8)
    assert beta(inside, GATHER, "gpu") == pytest.approx(7 / 8 / 100)
    assert beta(inside, SCATTER, "gpu") == pytest.approx(7 / 8 / 100)
    assert beta(inside, REDUCE, "gpu") == pytest.approx(2 * 7 / 8 / 100)
    assert beta(inside, TO_ALL, "gpu") == pytest.approx(7 / 8 / 100)


def test_groups_at_once_share_the_nic_of_their_hosts():
    across = cluster(hosts(), node=2, gpu=8)
    assert beta(across, REDUCE, "node") == pytest.approx(8 * 2 * 1 / 2 / 8)
    assert beta(cluster(hosts(nics=8), node=2, gpu=8), REDUCE, "node") == pytest.approx(2 * 1 / 2 / 8)
    assert beta(cluster(hosts(nics=2), node=2, gpu=8), REDUCE, "node") == pytest.approx(4 * 2 * 1 / 2 / 8)


def test_a_ring_over_all_devices_crosses_each_nic_once():
    assert beta(cluster(hosts(), node=2, gpu=8), GATHER, "node", "gpu") == pytest.approx(15 / 16 / 8)
    # With a NIC per device there is one ring per NIC, each with its share of the bytes.
    assert beta(cluster(hosts(nics=8), node=2, gpu=8), GATHER, "node", "gpu") == pytest.approx(15 / 16 / 64)


def test_an_axis_may_lie_across_hosts():
    assert beta(cluster(hosts(), gpu=16), GATHER, "gpu") == pytest.approx(15 / 16 / 8)
    # Ranks 0-3 and 4-7 are on host 0: no group of 4 crosses a NIC.
    assert beta(cluster(hosts(), a=4, b=4), GATHER, "b") == pytest.approx(3 / 4 / 100)
    # Each group of "a" has two ranks on each host, and there are four of them.
    assert beta(cluster(hosts(), a=4, b=4), GATHER, "a") == pytest.approx(4 * 3 / 4 / 8)


def test_an_all_to_all_sends_only_the_part_for_other_hosts_through_the_nic():
    # Each of 8 devices sends 8/16 of its bytes to the other host.
    assert beta(cluster(hosts(), node=2, gpu=8), TO_ALL, "node", "gpu") == pytest.approx(8 * 8 / 16 / 8)
    assert beta(cluster(hosts(nics=8), node=2, gpu=8), TO_ALL, "node", "gpu") == pytest.approx(8 / 16 / 8)


def test_all_devices_of_a_host_share_its_bus():
    where = cluster(hosts(devices=4, inside=BUS), node=2, gpu=4)
    # A ring of four passes the bus four times.
    assert beta(where, GATHER, "gpu") == pytest.approx(4 * 3 / 4 / 50)
    assert beta(where, TO_ALL, "gpu") == pytest.approx(4 * 3 / 4 / 50)


def test_the_slowest_wire_counts():
    mixed = Topology((NVLINK, BUS, NIC, SLOW), (Host(2, "nvlink", "nic"), Host(2, "bus", "slow")))
    assert beta(cluster(mixed, node=2, gpu=2), GATHER, "node") == pytest.approx(2 * 1 / 2 / 2)
    assert beta(cluster(mixed, node=2, gpu=2), GATHER, "gpu") == pytest.approx(2 * 1 / 2 / 50)
    assert cluster(mixed, node=2, gpu=2).route(1, 2).bandwidth == 2.0


def test_an_uplink_is_shared_by_the_hosts_below():
    # Each switch has two hosts; their NICs have bandwidth 16, the uplink a fourth of it.
    tree = hosts(count=4, devices=1, switch=Switch(2, 4.0))
    assert beta(cluster(tree, node=4), GATHER, "node") == pytest.approx(3 / 4 / 4)
    # Two groups cross at once if each has one host at each switch.
    assert beta(cluster(tree, a=2, b=2), GATHER, "a") == pytest.approx(2 * 1 / 2 / 4)
    assert beta(cluster(tree, a=2, b=2), GATHER, "b") == pytest.approx(1 / 2 / 8)
    # Each of two hosts sends two fourths beyond the switch.
    assert beta(cluster(tree, node=4), TO_ALL, "node") == pytest.approx(2 * 2 / 4 / 4)
    assert cluster(tree, node=4).route(0, 3).ports == (
        "host0.nic0.out", "switch0.out", "switch1.in", "host3.nic0.in",
    )  # fmt: skip


def test_a_collective_reaches_the_efficiency_of_its_level():
    level = Level("nic", 10e-6, 8.0, efficiency=(("all_gather", 0.5),))
    where = cluster(Topology((level,), (Host(1, nic="nic", count=2),)), node=2)
    assert beta(where, GATHER, "node") == pytest.approx(1 / 2 / 4)
    assert beta(where, SCATTER, "node") == pytest.approx(1 / 2 / 8)


def test_latency_is_paid_for_each_step():
    where = cluster(hosts(), node=2, gpu=8)
    # The latency of a ring of 16 has one crossing and 14 steps inside; an all-reduce takes it twice, or goes up and
    # down a tree of chains.
    chain, tree = 14 * 1e-6 + 10e-6, 7 * 1e-6 + 10e-6
    assert where.collective_costs(GATHER, ("node", "gpu"))[0] == pytest.approx(chain)
    assert where.collective_costs(REDUCE, ("node", "gpu"))[0] == pytest.approx(2 * tree)
    assert where.broadcast_costs(("node", "gpu"))[0] == pytest.approx(tree)
    assert where.collective_costs(TO_ALL, ("node", "gpu"))[0] == pytest.approx(10e-6)
    started = Topology((Level("nic", 10e-6, 8.0, start=5e-6),), (Host(1, nic="nic", count=2),))
    assert cluster(started, node=2).collective_costs(GATHER, ("node",))[0] == pytest.approx(15e-6)


def test_a_broadcast_sends_the_whole_value():
    assert cluster(hosts(), node=2, gpu=8).broadcast_costs(("gpu",))[1] == pytest.approx(1 / 100)
    assert cluster(hosts(), node=2, gpu=8).broadcast_costs(("node",))[1] == pytest.approx(8 / 8)


def test_a_hierarchy_sends_an_eighth_across():
    where = cluster(hosts(), node=2, gpu=8)
    assert where.has_levels(("gpu", "node"))
    inside, across = 7 / 8 / 100, 8 * 2 * 1 / 2 / 8
    hierarchical = where.collective_costs(REDUCE, ("node", "gpu"), "hierarchical")
    assert hierarchical[1] == pytest.approx(2 * inside + across / 8)
    assert where.collective_costs(REDUCE, ("gpu",), "hierarchical") == where.collective_costs(REDUCE, ("gpu",))
    assert not where.has_levels(("node",))
    assert not cluster(hosts(), a=4, b=4).has_levels(("a",))
    assert not cluster(hosts(devices=3), a=2, b=3, c=1).has_levels(("b", "c"))


def test_a_hierarchy_gathers_and_scatters_a_part_across_and_pays_for_copies():
    where = cluster(hosts(), node=2, gpu=8)
    memory = where.device(0).memory_bandwidth
    inside, across, copy = 7 / 8 / 100, 8 * 1 / 2 / 8, 2 / memory
    for kind in (GATHER, SCATTER):
        fixed, per_byte = where.collective_costs(kind, ("node", "gpu"), "hierarchical")
        assert per_byte == pytest.approx(inside + across / 8 + copy)
        assert fixed == sum(where.collective_costs(kind, (axis,))[0] for axis in ("node", "gpu"))
    # Both phases send all bytes of a rank.
    per_byte = where.collective_costs(TO_ALL, ("node", "gpu"), "hierarchical")[1]
    assert per_byte == pytest.approx(7 / 8 / 100 + 8 * 1 / 2 / 8 + 3 * copy)


def test_two_emulated_hosts_gather_and_scatter_as_measured():
    """`benchmarks/emulated_collectives.py` measured 193 and 200 ms for 8 MiB by phases."""
    levels = (Level("loopback", 1e-4, 7.5e9 / 8), Level("veth", 2e-4, 200e6 / 8))
    where = cluster(Topology(levels, (Host(2, "loopback", "veth", count=2),)), node=2, gpu=2)
    where = replace(where, devices=(replace(where.device(0), memory_bandwidth=5e9),))
    for kind in (GATHER, SCATTER):
        seconds = where.collective_seconds(kind, ("node", "gpu"), 8 * 2**20, "hierarchical")
        assert seconds == pytest.approx(0.196, rel=0.15)


def test_two_emulated_hosts_reduce_as_measured():
    """Measured on two network namespaces of two processes, 200 Mbit/s between and 7.5 Gbit/s inside: 531 and 409 ms."""
    levels = (Level("loopback", 1e-4, 7.5e9 / 8), Level("veth", 2e-4, 200e6 / 8))
    where = cluster(Topology(levels, (Host(2, "loopback", "veth", count=2),)), node=2, gpu=2)
    flat = where.collective_seconds(REDUCE, ("node", "gpu"), 8 * 2**20)
    hierarchical = where.collective_seconds(REDUCE, ("node", "gpu"), 8 * 2**20, "hierarchical")
    assert flat == pytest.approx(0.531, rel=0.1)
    assert hierarchical == pytest.approx(0.409, rel=0.2)


def test_a_route_has_its_shared_ports():
    where = hosts(nics=2)
    assert where.route(0, 1).ports == ("device0.out", "device1.in")
    assert where.route(3, 12).ports == ("host0.nic0.out", "host1.nic1.in")
    assert where.route(4, 12).ports == ("host0.nic1.out", "host1.nic1.in")
    assert (where.route(4, 12).latency, where.route(4, 12).bandwidth) == (10e-6, 8.0)
    assert hosts(inside=BUS).route(0, 1).ports == ("host0.bus",)
    assert where.route(5, 5).bandwidth == math.inf


def test_a_part_of_a_topology_keeps_its_ports():
    part = hosts(nics=2).part(range(12, 16))
    assert part.size == 4
    assert part.route(0, 1).ports == ("device12.out", "device13.in")
    assert part.seat(0).nic == 1
    assert part.part((3, 0)).devices == (15, 12)
    assert part.resized(4) is part
    with pytest.raises(ValueError, match=r"devices \[0, 0\] are invalid, expected different ones below 16"):
        hosts(nics=2).part((0, 0))


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (16, [(8, 2)]),
        (12, [(8, 1), (4, 1)]),
        (4, [(4, 1)]),
        (24, [(8, 2), (8, 1)]),
    ],
)
def test_hosts_are_cut_or_repeated(count: int, expected: list[tuple[int, int]]):
    resized = hosts().resized(count)
    assert [(host.devices, host.count) for host in resized.hosts] == expected
    assert resized.size == count


def test_one_host_without_a_nic_grows():
    assert Topology((NVLINK,), (Host(4, "nvlink"),)).resized(6).hosts == (Host(6, "nvlink"),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: Topology((NIC, NIC), (Host(1),)), 'level "nic" is described twice'),
        (lambda: Topology((), (Host(2),)), r"a host of 2 devices needs the level between them \(inside\)"),
        (lambda: Topology((), (Host(1, count=2),)), "each of several hosts needs the level of its NIC"),
        (lambda: Topology((), (Host(2, "nvlink"),)), 'level "nvlink" is not described; levels: none'),
        (lambda: Topology((), (Host(0),)), "devices, nics and count of a host must be at least 1"),
        (lambda: Topology((Level("a", 0.0, 0.0),), (Host(1),)), 'level "a" has no bandwidth'),
        (lambda: Topology((), (Host(1),), Switch(0, 1.0)), "a switch needs at least 1 host"),
    ],
)  # fmt: skip
def test_invalid_topologies_are_refused(given: object, message: str):
    assert callable(given)
    with pytest.raises(ValueError, match=message):
        given()


def test_hosts_must_match_the_mesh():
    with pytest.raises(ValueError, match=r"cluster @c has hosts with 16 devices, its mesh .* has 24"):
        cluster(hosts(), node=3, gpu=8)
