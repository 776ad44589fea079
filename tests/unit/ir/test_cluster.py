"""Clusters: measured times, their use by cost back ends, and routes between ranks."""

import pytest
from _back_ends import restricted

from shardwright.ir.cluster import Cluster, Device, Interference, Link
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh
from shardwright.ir.op_rate import OpRate
from shardwright.ir.topology import Host, Level, Topology

GATHER, REDUCE = CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE
MESH = Mesh.of(node=2, gpu=2)
POINTS = (("all_gather", 1000.0, 2e-3), ("all_gather", 4000.0, 4e-3), ("all_gather:grouped_broadcast", 1000.0, 7e-3))
GPU = Link("gpu", 1e-3, 1e-6, (("all_reduce", 3e-3, 2e-6),), POINTS)


def cluster(*links: Link, topology: Topology | None = None) -> Cluster:
    """Return a cluster of four devices."""
    rate = OpRate("contractions", "", 1.0, 1.0, 0.0)
    device = Device("d", (("float32", 1.0),), 1.0, 1.0, 0.0, (rate,), (("mm", 1.0),))
    return Cluster("c", MESH, (device,), (0,) * 4, links, Interference(1.1, 1.2), topology)


TWO_HOSTS = Topology((Level("inside", 1e-5, 1e8), Level("nic", 1e-4, 1e6)), (Host(2, "inside", "nic", count=2),))


def test_measured_times_are_used_and_interpolated_by_a_power_law():
    known = cluster(Link("node", 1e-2, 1e-5), GPU)
    assert known.collective_seconds(GATHER, ("gpu",), 1000) == pytest.approx(2e-3)
    assert known.collective_seconds(GATHER, ("gpu",), 2000) == pytest.approx(2e-3 * 2**0.5)
    assert known.collective_seconds(GATHER, ("gpu",), 1000, "padded") == pytest.approx(2e-3)
    assert known.collective_seconds(GATHER, ("gpu",), 1000, "grouped_broadcast") == pytest.approx(7e-3)


def test_padded_parts_take_their_measured_time():
    measured = Link("gpu", 1e-3, 1e-6, points=(*POINTS, ("all_gather:padded", 1000.0, 5e-3)))
    known = cluster(Link("node", 1e-2, 1e-5), measured)
    seconds = [known.collective_seconds(GATHER, ("gpu",), 1000, method) for method in ("flat", "padded")]
    assert seconds == pytest.approx([2e-3, 5e-3])


def test_a_start_takes_at_most_the_time_of_its_collective():
    starts = (("all_gather:start", 1000.0, 1e-3), ("all_gather:start", 4000.0, 9.0))
    started = Link("gpu", 1e-3, 1e-6, points=(*POINTS, *starts))
    known = cluster(Link("node", 1e-2, 1e-5), started)
    assert known.start_seconds(GATHER, ("gpu",), 1000) == pytest.approx(1e-3)
    assert known.start_seconds(GATHER, ("gpu",), 4000) == pytest.approx(4e-3)
    assert known.start_seconds(REDUCE, ("gpu",), 1000) == 0.0


def test_times_beyond_the_measurements_follow_the_line():
    known = cluster(Link("node", 1e-2, 1e-5), GPU)
    line = [1e-3 + 1e-6 * size / 2 for size in (4000, 8000)]
    assert known.collective_seconds(GATHER, ("gpu",), 8000) == pytest.approx(4e-3 * line[1] / line[0])
    assert known.collective_seconds(GATHER, ("gpu",), 0) == pytest.approx(2e-3 * 1e-3 / 1.5e-3)


def test_measured_points_hold_only_for_their_collective_and_axes():
    known = cluster(Link("node", 1e-2, 1e-5), GPU)
    assert known.collective_seconds(REDUCE, ("gpu",), 1000) == pytest.approx(3e-3 + 2e-3)
    assert known.collective_seconds(GATHER, ("node", "gpu"), 1000) == pytest.approx(1.1e-2 + 1e-5 * 750)


def test_several_axes_may_be_measured_together():
    both = Link("node-gpu", 5e-3, 3e-6, (), (("all_gather", 500.0, 1.0),))
    known = cluster(Link("node", 1e-2, 1e-5), GPU, both)
    assert known.collective_costs(REDUCE, ("gpu", "node")) == pytest.approx((5e-3, 2 * 3e-6 * 3 / 4))
    assert known.collective_seconds(GATHER, ("node", "gpu"), 500) == 1.0


def test_measurements_replace_costs_derived_from_hosts():
    plain = cluster(topology=TWO_HOSTS)
    times = cluster(Link("gpu", 0.0, 0.0, (), (("all_gather", 500.0, 1.0),)), topology=TWO_HOSTS)
    lines = cluster(GPU, topology=TWO_HOSTS)
    assert plain.collective_costs(GATHER, ("gpu",)) == pytest.approx((1e-5, 1e-8 / 2))
    assert times.collective_costs(GATHER, ("gpu",)) == plain.collective_costs(GATHER, ("gpu",))
    assert times.collective_seconds(GATHER, ("gpu",), 500) == 1.0
    assert lines.collective_costs(GATHER, ("gpu",)) == pytest.approx((1e-3, 1e-6 / 2))
    assert lines.collective_costs(GATHER, ("node",)) == plain.collective_costs(GATHER, ("node",))


def test_back_ends_use_more_or_fewer_measurements():
    known = cluster(Link("node", 1e-2, 1e-5), GPU)
    assert restricted(known, "table") == known
    fitted, analytic = restricted(known, "fitted"), restricted(known, "analytic")
    assert fitted.links[1] == Link("gpu", 1e-3, 1e-6, GPU.measured)
    assert (fitted.devices[0].table, fitted.devices[0].rates) == ((), known.devices[0].rates)
    assert fitted.interference == known.interference
    assert analytic.links[1] == Link("gpu", 1e-3, 1e-6)
    assert (analytic.devices[0].table, analytic.devices[0].rates) == ((), ())
    assert analytic.interference == Interference()
    assert restricted(cluster(GPU, topology=TWO_HOSTS), "analytic").links == ()


def test_a_route_goes_over_the_slowest_axis():
    known = cluster(Link("node", 1e-2, 1e-5), GPU)
    route = known.route(0, 3)
    assert (route.latency, route.bandwidth) == pytest.approx((1e-2, 1e5))
    assert route.ports == ("rank0.node.out", "rank3.node.in")
    assert known.route(2, 3).ports == ("rank2.gpu.out", "rank3.gpu.in")
    assert known.route(1, 1).ports == ()


def test_a_hierarchy_takes_the_links_of_its_axes():
    known = cluster(Link("node", 1e-2, 1e-5), GPU)
    assert not known.has_levels(("node", "gpu"))
    seconds, per_byte = known.collective_costs(REDUCE, ("node", "gpu"), "hierarchical")
    assert seconds == pytest.approx(1e-3 + 1e-2 + 1e-3)
    assert per_byte == pytest.approx(1e-6 / 2 + 2 * 1e-5 / 2 / 2 + 1e-6 / 2)


def test_times_that_are_not_positive_are_refused():
    with pytest.raises(ValueError, match=r"all_gather was measured to take 0\.0 s for 8 bytes"):
        Link("gpu", 0.0, 1.0, (), (("all_gather", 8, 0.0),))


def test_ranks_resume_later_the_longer_they_computed():
    late = Interference(delays=((2.0, 1.0), (6.0, 3.0)))
    assert [late.delay(computed) for computed in (0.0, 1.0, 2.0, 4.0, 6.0, 60.0)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    assert Interference().delay(1.0) == 0.0


@pytest.mark.parametrize("delays", [((2.0, 1.0), (2.0, 1.0)), ((0.0, 1.0),), ((1.0, -1.0),)])
def test_delays_must_rise_with_the_computed_seconds(delays: tuple[tuple[float, float], ...]):
    with pytest.raises(ValueError, match="delays must be listed by increasing seconds of computing, none negative"):
        Interference(delays=delays)
