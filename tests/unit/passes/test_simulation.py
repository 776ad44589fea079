"""The simulation of a step: waits, shared ports, and equality of classes with their ranks."""

import itertools
from dataclasses import replace
from typing import cast

import pytest
from ir_files import context, parse
from road import road
from xdsl.dialects.builtin import ArrayAttr

from shardwright.dialects.pipe import SCHEDULE, SlotAttr
from shardwright.ir.cluster import Cluster, Interference
from shardwright.ir.topology import Host, Level, Topology
from shardwright.ir.what_if import changed
from shardwright.passes.analysis.simulation.critical_path import critical_path, seconds_by_op
from shardwright.passes.analysis.simulation.engine import SpanRun
from shardwright.passes.analysis.simulation.held import HeldBytes
from shardwright.passes.analysis.simulation.network import fair_rates
from shardwright.passes.analysis.simulation.places import refined
from shardwright.passes.analysis.simulation.results import Simulation
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.errors import OpFailure
from shardwright.passes.step.step_view import cluster_of_module, step_functions

# A relu of 500 floats moves 4,000 bytes: 4 s. A collective starts in 1 s and sends 1,000 bytes in 1 s.
HEAD = """
#slow = #spmd.device<"slow", flops = {float32 = 1.0e9}, bandwidth = 1.0e3, memory = 1.0e9, launch = 0.0>
#fast = #spmd.device<"fast", flops = {float32 = 1.0e9}, bandwidth = 4.0e3, memory = 1.0e9, launch = 0.0>
"""
SQUARE = """
spmd.mesh @mesh = <["dp"=2, "tp"=2]>
spmd.cluster @c on @mesh devices [#slow] placement [0, 0, 0, 0]
  links [#spmd.link<"dp", alpha = 1.0, beta = 1.0e-3>, #spmd.link<"tp", alpha = 1.0, beta = 1.0e-3>]
"""
RELU = "{spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<500xf32>) -> tensor<500xf32>"


def simulated(text: str, *, interference: Interference = Interference(), every_rank: bool = False) -> Simulation:
    """Return the simulation of the one function of `text`."""
    module = parse(HEAD + text, context())
    cluster = replace(cluster_of_module(module), interference=interference)
    (found,) = simulate_module(module, cluster, every_rank=every_rank)
    return found


def started(token: str, value: str, left: str = "") -> str:
    """Return the start of an all-reduce of `value` whose result is partial over `left`."""
    kept = f", unreduced={{{left}}}" if left else ""
    return f'%{token} = spmd.start "all_reduce" {value} out_shardings = [#spmd.sharding<@mesh, [{{}}]{kept}>]'


def overlapped(lines: str) -> str:
    """Return a function of `%x`, replicated, `%p`, partial over dp, and `%q`, partial over both axes."""
    partial = "spmd.sharding = #spmd.sharding<@mesh, [{}], unreduced={%s}>"
    p, q = partial % '"dp"', partial % '"dp", "tp"'
    types = ", ".join((f"%p: tensor<500xf32> {{{p}}}", f"%q: tensor<500xf32> {{{q}}}", "%x: tensor<500xf32>"))
    return f"{SQUARE} func.func @f({types}) {{ {lines} func.return }}"


BESIDE = overlapped(
    f"{started('t', '%p')} : tensor<500xf32> %y = aten.relu %x {RELU} %z = spmd.wait %t : tensor<500xf32>"
)


@pytest.mark.parametrize("every_rank", [False, True])
def test_overlapping_work_takes_longer_by_the_factors_of_interference(every_rank: bool):
    found = simulated(BESIDE, interference=Interference(compute=2.0, communication=1.5), every_rank=every_rank)
    # The all-reduce of 3 s takes 4.5 s with the relu, which has done 2.25 s by then: 1.75 s are left.
    assert found.execution.traffic[0].end == pytest.approx(4.5)
    assert found.seconds == pytest.approx(6.25)
    assert simulated(BESIDE, every_rank=every_rank).seconds == pytest.approx(4.0)


def test_a_start_occupies_the_compute_stream_for_its_measured_time():
    points = 'points = {"all_reduce:start" = [(2000.0, 1.0)]}'
    text = BESIDE.replace('"dp", alpha = 1.0, beta = 1.0e-3', f'"dp", alpha = 1.0, beta = 1.0e-3, {points}')
    found = simulated(text, interference=Interference(compute=2.0))
    # The start takes 1 s of the 3 s of the all-reduce; during the other 2 s the relu does 1 s of its 4.
    assert found.execution.traffic[0].end == pytest.approx(3.0)
    assert found.seconds == pytest.approx(6.0)
    # With an immediate wait, the collective takes the same time as before.
    assert simulated(text.replace("%y = aten.relu %x " + RELU, "")).seconds == pytest.approx(3.0)


def test_computation_without_overlap_is_not_slowed_down():
    after = overlapped(
        f"{started('t', '%p')} : tensor<500xf32> %z = spmd.wait %t : tensor<500xf32> %y = aten.relu %x {RELU}"
    )
    assert simulated(after, interference=Interference(2.0, 2.0)).seconds == pytest.approx(7.0)


@pytest.mark.parametrize("every_rank", [False, True])
def test_collectives_share_a_port_after_their_latency(every_rank: bool):
    found = simulated(
        overlapped(
            f"{started('s', '%p')} : tensor<500xf32> {started('t', '%q')} : tensor<500xf32>"
            "%a = spmd.wait %s : tensor<500xf32> %b = spmd.wait %t : tensor<500xf32>"
        ),
        every_rank=every_rank,
    )
    # Over dp: 1 s of latency, then 2 s of bytes. Over both: 2 s, then 3 s. From 2 s on both flow at half speed: the
    # remaining 1 s of the first ends at 4 s, when the second has 2 s left.
    ends = {run.channel.name: run.end for run in found.execution.traffic}
    assert ends == {"dp": pytest.approx(4.0), "dp tp": pytest.approx(6.0)}
    assert found.seconds == pytest.approx(6.0)


@pytest.mark.parametrize("every_rank", [False, True])
def test_collectives_of_devices_with_one_nic_share_it(every_rank: bool):
    levels = (Level("nvlink", 0.0, 1e9), Level("ethernet", 1.0, 1e3))
    hosts = Topology(levels, (Host(2, "nvlink", "ethernet", 1, 2),))
    lines = (
        f"{started('s', '%p')} : tensor<500xf32> {started('t', '%q')} : tensor<500xf32>"
        "%a = spmd.wait %s : tensor<500xf32> %b = spmd.wait %t : tensor<500xf32>"
    )
    module = parse(HEAD + overlapped(lines), context())
    cluster = replace(cluster_of_module(module), links=(), topology=hosts)
    (found,) = simulate_module(module, cluster, every_rank=every_rank)
    alone = {run.channel.name: run.traffic for run in found.execution.traffic}
    ends = {run.channel.name: run.end for run in found.execution.traffic}
    first, last = sorted(alone, key=lambda name: ends[name])
    # Both flow at half speed from the end of the later latency until the first ends.
    both = max(each.latency for each in alone.values())
    left = alone[first].seconds - both
    assert ends[first] == pytest.approx(both + 2 * left)
    assert ends[last] == pytest.approx(alone[last].seconds + left)


def test_ports_are_shared_fairly():
    assert fair_rates([{"a": 1.0}, {"b": 1.0}]) == [1.0, 1.0]
    assert fair_rates([{"a": 1.0}, {"a": 1.0}]) == [0.5, 0.5]
    assert fair_rates([{"a": 0.25}, {"a": 0.5}]) == [1.0, 1.0]
    # The first two share a port; the third gets the remaining rate of the other port.
    assert fair_rates([{"a": 1.0}, {"a": 1.0, "b": 1.0}, {"b": 0.8}]) == pytest.approx([0.5, 0.5, 0.625])


UNEVEN = """
#rows = #spmd.sharding<@mesh, [{"gpu"}], offsets={0: [0, 400, 500]}>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @c on @mesh devices [#slow, #fast] placement [0, 1] links [#spmd.link<"gpu", alpha = 1.0, beta = 1.0e-3>]
func.func @f(%x: tensor<500xf32> {spmd.sharding = #rows}) {
  %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}], offsets={0: [0, 400, 500]})
    -> ([{"gpu"}], offsets={0: [0, 400, 500]})>} : (tensor<500xf32>) -> tensor<500xf32>
  %z = spmd.all_gather [{"gpu"}] %y out_sharding = <@mesh, [{}]> method = "padded" : tensor<500xf32>
  func.return
}
"""


def test_a_collective_waits_for_the_last_rank_and_takes_the_time_of_the_largest_part():
    found = simulated(UNEVEN)
    slow, fast = found.classes
    # The slow device takes 3.2 s for 400 floats, the fast one 0.2 s for 100; the gather of 1,600 bytes takes 2.6 s.
    # Then 2,000 bytes of padded rows are copied to the result, in 4 s and in 1 s.
    assert (slow.ranks, fast.ranks) == ((0,), (1,))
    assert [found.compute_seconds(each.number) for each in found.classes] == pytest.approx([7.2, 1.2])
    assert found.seconds == pytest.approx(9.8)
    waits = [sum(found.waited(each.number).values()) for each in found.classes]
    assert waits == pytest.approx([2.6, 5.6])
    path = critical_path(found)
    assert [piece.start for piece in path] == [0.0, pytest.approx(3.2), pytest.approx(5.8)]
    assert isinstance(path[0].what, SpanRun)
    assert path[0].what.number == slow.number


LATE = Interference(delays=((1.0, 0.5), (4.0, 2.0)))


def test_ranks_resume_after_a_wait_with_a_delay_by_their_computed_seconds():
    found = simulated(UNEVEN, interference=LATE)
    # The gather ends at 5.8 s. The slow device, after 3.2 s of computing, resumes 1.6 s later, the fast one 0.1 s.
    # The slow device copies until 11.4 s; the step ends 2 s later, after 4 s of copying.
    waits = [sum(found.waited(each.number).values()) for each in found.classes]
    assert waits == pytest.approx([4.2, 5.7])
    assert found.seconds == pytest.approx(13.4)
    assert sum(piece.end - piece.start for piece in critical_path(found)) == pytest.approx(13.4)


def test_a_step_ends_when_its_last_rank_is_done():
    lines = f"%y = aten.relu %x {RELU}"
    assert simulated(overlapped(lines)).seconds == pytest.approx(4.0)
    assert simulated(overlapped(lines), interference=LATE).seconds == pytest.approx(6.0)


def test_a_finished_collective_is_not_waited_for():
    late = simulated(BESIDE, interference=LATE)
    # The all-reduce of 3 s ends before the relu of 4 s: only the end of the step is delayed.
    assert late.waited(0) == {}
    assert late.seconds == pytest.approx(6.0)


GATHERED = (
    SQUARE
    + """
#columns = #spmd.sharding<@mesh, [{}, {"tp"}]>
func.func @f(%x: tensor<10x50xf32> {spmd.sharding = #columns}) {
  %y = spmd.all_gather [{}, {"tp"}] %x out_sharding = <@mesh, [{}, {}]> : tensor<10x50xf32>
  func.return
}
"""
)


def test_a_gather_along_an_inner_dim_pays_for_a_copy():
    # 1 s of latency and 1 s for 1,000 sent bytes; then 2,000 bytes are read and written in 4 s.
    assert simulated(GATHERED).seconds == pytest.approx(6.0)
    rows = GATHERED.replace('[{}, {"tp"}]', '[{"tp"}, {}]')
    assert simulated(rows).seconds == pytest.approx(2.0)


def test_small_values_of_a_bucket_are_copied_into_one_message():
    partial = '{spmd.sharding = #spmd.sharding<@mesh, [{}], unreduced={"dp"}>}'
    whole = "#spmd.sharding<@mesh, [{}]>"
    text = f"""
    func.func @f(%p: tensor<500xf32> {partial}, %q: tensor<500xf32> {partial}) {{
      %t = spmd.start "all_reduce" %p, %q out_shardings = [{whole}, {whole}] : tensor<500xf32>, tensor<500xf32>
      %a, %b = spmd.wait %t : tensor<500xf32>, tensor<500xf32>
      func.return
    }}"""
    # 4,000 bytes are read and written in 8 s; then 1 s of latency, and 4 s for 4,000 sent bytes.
    assert simulated(SQUARE + text).seconds == pytest.approx(13.0)


def test_ranks_are_of_one_class_if_their_neighbours_are():
    pairs = [("tp", (0, 1)), ("tp", (2, 3)), ("dp", (0, 2)), ("dp", (1, 3))]
    assert refined("aaaa", pairs) == ((0, 1, 2, 3),)
    assert refined("bbaa", pairs) == ((0, 1), (2, 3))


def test_ranks_are_of_different_classes_if_their_partners_along_an_axis_are():
    """Rank 1 waits for rank 0 along tp, and rank 2 waits for rank 0 along dp."""
    pairs = [("tp", (0, 1)), ("tp", (2, 3)), ("dp", (0, 2)), ("dp", (1, 3))]
    assert refined("baaa", pairs) == ((0,), (1,), (2,), (3,))


def test_a_wait_for_a_transfer_that_never_starts_is_refused():
    module = road().clone()
    (func,) = step_functions(module)
    first, *others = cast("ArrayAttr[ArrayAttr[SlotAttr]]", func.attributes[SCHEDULE])
    func.attributes[SCHEDULE] = ArrayAttr([ArrayAttr(s for s in first if s.data.action != "start"), *others])
    with pytest.raises(OpFailure, match="not all who take part begin it; run check-order"):
        simulate_module(module)


def numbers(**values: float) -> Cluster:
    """Return the cluster of the road with other numbers."""
    cluster = cluster_of_module(road())
    for path, value in values.items():
        cluster = changed(cluster, path.replace("__", "."), value)
    return cluster


CASES: dict[str, dict[str, float]] = {
    "as it is": {},
    "slow network": {"link__gpu__bandwidth": 1e6},
    "latency": {"link__gpu__latency": 1e-3},
    "interference": {"interference__compute": 1.4, "interference__communication": 1.8},
    "fast devices": {"link__gpu__bandwidth": 1e8, "device__fast__memory_bandwidth": 1e12},
}


@pytest.mark.parametrize("case", CASES)
def test_classes_equal_their_ranks(case: str):
    (one,) = simulate_module(road(), numbers(**CASES[case]))
    (every,) = simulate_module(road(), numbers(**CASES[case]), every_rank=True)
    assert one.seconds == pytest.approx(every.seconds, rel=1e-12)
    assert (len(one.classes), len(every.classes)) == (3, 4)
    for each in one.classes:
        for rank in each.ranks:
            alone = next(other.number for other in every.classes if other.ranks == (rank,))
            assert one.compute_seconds(each.number) == pytest.approx(every.compute_seconds(alone))
            assert one.busy_seconds(each.number) == pytest.approx(every.busy_seconds(alone))
            assert sum(one.waited(each.number).values()) == pytest.approx(sum(every.waited(alone).values()))


@pytest.mark.parametrize("case", CASES)
def test_the_time_of_a_step_is_between_its_critical_path_and_the_sum_of_its_work(case: str):
    (found,) = simulate_module(road(), numbers(**CASES[case]))
    path = critical_path(found)
    assert sum(piece.end - piece.start for piece in path) == pytest.approx(found.seconds)
    assert sum(seconds_by_op(found, path).values()) == pytest.approx(found.seconds)
    undisturbed = [
        piece.what.span.ends[found.classes[piece.what.number].column][-1]
        if isinstance(piece.what, SpanRun)
        else piece.what.traffic.seconds
        for piece in path
    ]
    spans = [run for each in found.classes for run in found.spans(each.number)]
    row = sum(run.span.ends[found.classes[run.number].column][-1] for run in spans)
    row += sum(run.traffic.seconds for run in found.execution.traffic)
    assert sum(undisturbed) <= found.seconds * (1 + 1e-9)
    assert found.seconds <= row * (1 + 1e-9)


def test_every_op_runs_within_its_span_and_memory_equals_check_memory():
    (found,) = simulate_module(road(), numbers(**CASES["interference"]))
    held = HeldBytes(found)
    for each in found.classes:
        runs = list(found.ops(each.number))
        assert all(a.end <= b.start + 1e-12 for a, b in itertools.pairwise(runs))
        assert sum(run.end - run.start for run in runs) == pytest.approx(found.compute_seconds(each.number))
        over_time = list(held.over_time(each))
        assert max(now.bytes for now in over_time) == held.peak(each)
        assert all(a.time <= b.time for a, b in itertools.pairwise(over_time))
