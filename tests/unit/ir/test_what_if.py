"""Clusters with other numbers, and ranges of numbers."""

from dataclasses import replace

import pytest

from shardwright.ir.cluster import Cluster, Device, Interference, Link
from shardwright.ir.mesh import Mesh
from shardwright.ir.op_rate import OpRate
from shardwright.ir.topology import Host, Level, Topology
from shardwright.ir.what_if import WhatIfError, changed, fields, number, parse_change, parse_sweep

RATES = (OpRate("contractions", "float32", 8e12, 1e11, 1e-6), OpRate("", "", 6e12, 8e10, 2e-6))
DEVICE = Device("gpu", (("float32", 1e13), ("bfloat16", 4e13)), 1e12, 8e10, 2e-6, RATES, (("mm(...)", 1e-3),))
LINK = Link("gpu", 1e-5, 1e-10, (("all_reduce", 2e-5, 3e-10),), (("all_gather", 1e6, 5e-4),))
CLUSTER = Cluster("four", Mesh.of(gpu=4).over(micro=2), (DEVICE,), (0, 0, 0, 0), (LINK,))


def test_a_field_is_named_by_its_path_and_its_value_may_have_a_unit():
    assert changed(CLUSTER, "link.gpu.bandwidth", "25GB/s").links[0].beta == pytest.approx(4e-11)
    assert changed(CLUSTER, "link.gpu.latency", "5us").links[0].alpha == 5e-6
    assert changed(CLUSTER, "device.gpu.memory", 1e9).devices[0].memory == 1e9
    assert changed(CLUSTER, "interference.compute", "1.25").interference == Interference(1.25, 1.0)
    assert number(CLUSTER, "link.gpu.bandwidth") == pytest.approx(1e10)


def test_nothing_else_changes():
    found = changed(CLUSTER, "interference.communication", 2.0)
    assert found == replace(CLUSTER, interference=Interference(1.0, 2.0))
    assert changed(CLUSTER, "device.gpu.memory", number(CLUSTER, "device.gpu.memory")) == CLUSTER


def test_measurements_of_a_link_are_scaled_with_the_set_value():
    slower = changed(CLUSTER, "link.gpu.bandwidth", 5e9).links[0]
    assert slower.measured == (("all_reduce", 2e-5, pytest.approx(6e-10)),)
    # 10 us of the 0.5 ms are latency; the rest doubles.
    assert slower.points == (("all_gather", 1e6, pytest.approx(1e-5 + 2 * 4.9e-4)),)
    later = changed(CLUSTER, "link.gpu.latency", 3e-5).links[0]
    assert later.measured == (("all_reduce", pytest.approx(6e-5), 3e-10),)
    assert later.points == (("all_gather", 1e6, pytest.approx(3e-5 + 4.9e-4)),)


def test_fitted_rates_are_scaled_with_the_set_value_and_measured_ops_are_dropped():
    (faster,) = changed(CLUSTER, "device.gpu.flops.float32", 2e13).devices
    # The rate of all other dtypes changes only if all dtypes do.
    assert [rate.flops for rate in faster.rates] == [pytest.approx(16e12), 6e12]
    assert faster.table == ()
    (wider,) = changed(CLUSTER, "device.gpu.memory_bandwidth", "2TB/s").devices
    assert [rate.bandwidth for rate in wider.rates] == [pytest.approx(2e11), pytest.approx(1.6e11)]
    assert changed(CLUSTER, "device.gpu.memory", 1e9).devices[0].table == DEVICE.table


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("link.gpu.bandwith", "1GB/s", "no field link.gpu.bandwith; did you mean link.gpu.bandwidth?"),
        ("link.node.bandwidth", "1GB/s", "no field link.node.bandwidth; did you mean link.inter.bandwidth?"),
        ("zebra", "1", "no field zebra; there are device.gpu.flops.float32, "),
        ("link.gpu.bandwidth", "fast", "link.gpu.bandwidth cannot be fast: .*bandwidth"),
        ("device.gpu.memory", "-1", "device.gpu.memory cannot be -1: .*memory"),
    ],
)
def test_an_invalid_field_or_value_is_refused(path: str, value: str, message: str):
    with pytest.raises(WhatIfError, match=message.replace("?", r"\?")):
        changed(CLUSTER, path, value)


def test_all_fields_can_be_set_to_their_own_value():
    numbers = [path for path in fields(CLUSTER) if path.partition(".")[0] in ("device", "link")]
    assert "device.gpu.flops.bfloat16" in numbers
    for path in numbers:
        if path not in ("device.gpu.overhead", "device.gpu.block"):
            assert changed(CLUSTER, path, number(CLUSTER, path)) == CLUSTER


def test_an_axis_without_a_link_uses_the_level_of_its_hosts():
    levels = (Level("nvlink", 1e-6, 3e11), Level("ethernet", 2e-5, 1e10))
    hosts = Topology(levels, (Host(2, "nvlink", "ethernet", 1, 2),))
    cluster = Cluster("hosts", Mesh.of(node=2, gpu=2), (DEVICE,), (0, 0, 0, 0), (), topology=hosts)
    found = changed(cluster, "link.node.bandwidth", "25GB/s")
    assert found == changed(cluster, "level.ethernet.bandwidth", 25e9) != cluster
    assert number(found, "link.node.bandwidth") == 25e9
    assert number(found, "link.gpu.bandwidth") == 3e11
    assert changed(cluster, "host.0.nics", "2").topology != hosts
    with pytest.raises(WhatIfError, match=r"host.0.count cannot be 3: .*devices"):
        changed(cluster, "host.0.count", "3")


def test_a_sweep_has_equal_ratios_between_its_ends():
    sweep = parse_sweep("link.gpu.bandwidth=1GB/s..100GB/s:3", CLUSTER)
    assert (sweep.path, sweep.values) == ("link.gpu.bandwidth", pytest.approx((1e9, 1e10, 1e11)))
    assert parse_change("interference.compute = 2") == ("interference.compute", "2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("link.gpu.bandwidth", "is not a change; expected FIELD=VALUE"),
        ("link.gpu.bandwidth=1GB/s", "is not a sweep; expected FIELD=FROM..TO:COUNT"),
        ("link.gpu.bandwidth=1GB/s..2GB/s:1", "count of 2 to 1000"),
        ("link.gpu.latency=0..1us:3", "a sweep needs positive numbers"),
    ],
)
def test_an_invalid_sweep_is_refused(text: str, message: str):
    with pytest.raises(WhatIfError, match=message):
        parse_sweep(text, CLUSTER)


def test_intra_and_inter_name_the_links_inside_and_between_hosts():
    hosts = Topology((Level("wire", 1e-6, 1e9), Level("bus", 1e-7, 1e10)), (Host(2, "bus", "wire", count=2),))
    cluster = Cluster("hosts", Mesh.of(gpu=4), (DEVICE,), (0,) * 4, (), topology=hosts)
    assert changed(cluster, "link.inter.bandwidth", "2GB/s") == changed(cluster, "level.wire.bandwidth", 2e9)
    assert changed(cluster, "link.intra.latency", "1us") == changed(cluster, "level.bus.latency", 1e-6)
    # Without hosts, the first axis is the outermost and the last the innermost.
    plain = Cluster("axes", Mesh.of(node=2, gpu=2), (DEVICE,), (0,) * 4, (replace(LINK, axis="node"), LINK))
    assert changed(plain, "link.inter.bandwidth", 2e9) == changed(plain, "link.node.bandwidth", 2e9)
    assert changed(plain, "link.intra.bandwidth", 2e9) == changed(plain, "link.gpu.bandwidth", 2e9)
