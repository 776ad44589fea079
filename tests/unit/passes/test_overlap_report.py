"""Seconds of computation, communication, and their overlap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_files import context, parse

from shardwright.ir.overlap import Overlap, Span, common, length, merged, overlap_of, without
from shardwright.passes.analysis.simulation.overlap_report import overlaps
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.step.step_view import cluster_of_module

# A relu of 500 floats moves 4,000 bytes: 4 s. A sum starts in 1 s and sends 2,000 bytes in 2 s.
HEAD = """
spmd.mesh @mesh = <["dp"=2]>
spmd.cluster @c on @mesh
  devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e3, memory = 1.0e9, launch = 0.0>]
  placement [0, 0] links [#spmd.link<"dp", alpha = 1.0, beta = 1.0e-3>]
"""
RELU = "%a = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{}]) -> ([{}])>} : (tensor<500xf32>) -> tensor<500xf32>"
START = '%t = spmd.start "all_reduce" %p out_shardings = [#spmd.sharding<@mesh, [{}]>] : tensor<500xf32>'

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: (min(pair), max(pair))))


def seconds_in(spans: list[Span]) -> set[int]:
    return {second for begin, end in spans for second in range(int(begin), int(end))}


@given(SPANS, SPANS)
def test_spans_are_sets_of_times(one: list[Span], other: list[Span]):
    assert length(merged(one)) == len(seconds_in(one))
    assert length(common(merged(one), merged(other))) == len(seconds_in(one) & seconds_in(other))
    assert length(without(merged(one), merged(other))) == len(seconds_in(one) - seconds_in(other))


def report(*lines: str) -> dict[tuple[str, str], Overlap]:
    partial = 'spmd.sharding = #spmd.sharding<@mesh, [{}], unreduced={"dp"}>'
    head = f"func.func @f(%p: tensor<500xf32> {{{partial}}}, %x: tensor<500xf32>) {{"
    module = parse("\n".join([HEAD, head, *lines, "func.return", "}"]), context())
    (simulation,) = simulate_module(module, cluster_of_module(module))
    return dict(overlaps(simulation, 0))


def test_a_collective_that_starts_early_is_hidden():
    found = report(START, RELU, "%b = spmd.wait %t : tensor<500xf32>")
    assert set(found) == {("forward", "dp"), ("forward", "all"), ("all", "dp"), ("all", "all")}
    assert all(each == Overlap(4.0, 3.0, 3.0) for each in found.values())
    assert (found["all", "all"].exposed, found["all", "all"].ratio) == (0.0, 1.0)


def test_a_collective_with_an_immediate_wait_is_exposed():
    now = '%s = spmd.all_reduce [{"dp"}] %p out_sharding = <@mesh, [{}]> : tensor<500xf32>'
    found = report(now, RELU)["all", "all"]
    assert (found.compute, found.communication, found.exposed) == pytest.approx((4.0, 3.0, 3.0))
    assert found.ratio == 0.0


def test_phases_are_reported_separately():
    backward = START.replace(" : tensor", " {train.backward} : tensor")
    found = report(backward, RELU, "%b = spmd.wait %t {train.backward} : tensor<500xf32>")
    assert found["backward", "dp"] == Overlap(0.0, 3.0, 3.0)
    assert found["all", "all"].compute == 4.0


def test_traffic_of_a_phase_may_overlap_computation_of_any_phase():
    computed = {"forward": [(0.0, 2.0)], "backward": [(2.0, 8.0)]}
    found = overlap_of(computed, [("forward", "dp", (1.0, 6.0)), ("backward", "tp", (5.0, 10.0))])
    assert found["forward", "dp"] == Overlap(2.0, 5.0, 5.0)
    assert found["forward", "dp"].ratio == 1.0
    assert found["backward", "all"].ratio == 3 / 5
    assert found["all", "all"] == Overlap(8.0, 9.0, 7.0)
    assert list(found) == [
        *(("forward", each) for each in ("dp", "all")),
        *(("backward", each) for each in ("tp", "all")),
        *(("all", each) for each in ("dp", "tp", "all")),
    ]
