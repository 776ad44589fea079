"""Costs of an all-reduce along trees of hosts, compared with the published figures of NCCL on H100s."""

import pytest

from shardwright.ir.topology import Host, Level, Topology
from shardwright.ir.topology_cost import topology_costs

START, HOP, STEP, INSIDE, NIC = 8.4e-6, 4e-6, 14e-6, 300e9, 48e9


def costs(kind: str, hosts: int, devices: int) -> tuple[float, float]:
    levels = (Level("inside", HOP, INSIDE), Level("nic", STEP, NIC, START))
    topology = Topology(levels, (Host(devices, "inside", "nic", nics=devices, count=hosts),))
    alpha, beta = topology_costs(topology, kind, (tuple(range(hosts * devices)),))
    return alpha * 1e6, 1 / beta / 1e9


@pytest.mark.parametrize(
    ("hosts", "devices", "published"),
    [(2, 1, 36.4), (2, 8, 92.4), (4, 1, 64.4), (8, 8, 148.4), (32, 1, 148.4), (32, 8, 204.4)],
)
def test_latency_counts_levels_of_hosts_and_devices_of_a_host(hosts: int, devices: int, published: float):
    assert costs("all_reduce:tree", hosts, devices)[0] == pytest.approx(published)


def test_two_hosts_send_each_half_both_ways_and_more_have_children():
    assert costs("all_reduce:tree", 2, 1)[1] == pytest.approx(48)
    assert costs("all_reduce:tree", 4, 1)[1] == pytest.approx(24, rel=0.2)
    assert costs("all_reduce:tree", 2, 2)[1] == pytest.approx(96)


def test_a_switch_takes_one_step_and_each_value_once():
    assert costs("all_reduce:switch", 2, 8)[0] == pytest.approx(8.4 + 2 * (14 + 4))
    assert costs("all_reduce:switch", 2, 8)[1] == pytest.approx(300)
    assert costs("all_reduce:tree", 2, 8)[1] == pytest.approx(300 / (2 * 7 / 8))


def test_an_all_reduce_takes_the_better_latency_and_bandwidth():
    assert costs("all_reduce", 8, 1)[0] == costs("all_reduce:tree", 8, 1)[0] < costs("all_reduce:ring", 8, 1)[0]
    assert costs("all_reduce", 8, 1)[1] == costs("all_reduce:ring", 8, 1)[1]
