"""Measured times become a cluster: known constants are recovered."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_up_journal import ALPHA, BANDWIDTH, BETA, FLOPS, SIZES, made_up_journal

from shardwright.api.calibration.op_families import family_samples
from shardwright.ir.cluster_file import parse_cluster
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh
from shardwright.ir.op_cost import op_seconds
from shardwright.runtime.profile.journal import Journal, ProfileError
from shardwright.runtime.profile.result import Output, profile_of, profile_text, rising
from shardwright.runtime.profile.tasks import SHIFTED, exchanges, groups_of, neighbour, sizes_between

MESH = Mesh.of(node=2, gpu=2)
SAMPLES = tuple(each for each in family_samples(("float32",), quick=True) if each.work.bytes < 1e6)


def test_the_constants_of_links_are_recovered():
    cluster = Output("known", SAMPLES).profile(made_up_journal(MESH, SAMPLES, [1.0] * 4)).cluster
    assert [link.axis for link in cluster.links] == ["node", "gpu", "node-gpu"]
    for link in cluster.links[:2]:
        assert (link.alpha, link.beta) == (pytest.approx(ALPHA), pytest.approx(BETA))
        for kind in ("all_reduce", "all_gather", "all_to_all", "broadcast"):
            assert link.named_costs(kind) == (pytest.approx(ALPHA), pytest.approx(BETA))
        assert link.curve("all_gather:padded") == [(size, pytest.approx(ALPHA + BETA * size / 2)) for size in SIZES]
    seconds = cluster.collective_seconds(CollectiveKind.ALL_REDUCE, ("gpu",), 65536)
    assert seconds == pytest.approx(ALPHA + BETA * 65536)


def test_a_link_is_as_slow_as_its_slowest_neighbours():
    mesh = Mesh.of(node=2, gpu=3)
    journal = made_up_journal(mesh, SAMPLES, [1.0] * 6)
    for name, rounds in journal.seconds.items():
        if name.startswith("send:shifted over gpu"):
            journal.seconds[name] = [[8 * seconds for seconds in by_rank] for by_rank in rounds]
    node, gpu, _ = Output("uneven", SAMPLES).profile(journal).cluster.links
    assert not any(name.startswith("send:shifted over node") for name in journal.seconds)
    assert (node.beta, gpu.beta) == (pytest.approx(BETA), pytest.approx(8 * BETA))


@pytest.mark.parametrize("parts", [2, 3, 4, 5])
def test_pairings_cover_all_neighbours(parts: int):
    pairs = [(part, neighbour(part, parts, pairing)) for pairing in ("", SHIFTED) for part in range(parts)]
    met = {(part, other) for part, other in pairs if other is not None}
    assert met == {(a, b) for a in range(parts) for b in range(parts) if abs(a - b) == 1}


def test_equal_devices_are_one_kind_with_fitted_rates():
    profile = Output("known", SAMPLES).profile(made_up_journal(MESH, SAMPLES, [1.0, 1.1, 1.0, 1.1]))
    (device,) = profile.cluster.devices
    assert device.memory == 1e9
    assert device.overhead == pytest.approx(3e-4)
    errors = [
        abs(op_seconds(device, each.work) / (max(each.work.flops / FLOPS, each.work.bytes / BANDWIDTH) + 4e-6) - 1)
        for each in SAMPLES
    ]
    assert sorted(errors)[len(errors) // 2] < 0.1
    assert (profile.cluster.interference.compute, profile.cluster.interference.communication) == (1.7, 2.2)
    assert profile.missing == {}


def test_slower_ranks_are_another_kind():
    cluster = Output("known", SAMPLES).profile(made_up_journal(MESH, SAMPLES, [1.0, 3.0, 1.0, 1.1])).cluster
    assert [device.kind for device in cluster.devices] == ["cpu", "cpu-slower1"]
    assert cluster.placement == (0, 1, 0, 0)
    fast, slow = (op_seconds(device, SAMPLES[3].work) for device in cluster.devices)
    assert slow / fast == pytest.approx(3 / 1.03, rel=0.1)


def test_missing_measurements_are_listed_in_a_valid_cluster_file():
    journal = made_up_journal(MESH, SAMPLES, [1.0] * 4)
    journal.seconds = {name: found for name, found in journal.seconds.items() if not name.startswith("broadcast")}
    del journal.seconds[SAMPLES[0].work.key]
    journal.trouble = "rank 3\n[[was]]\x00\rlost"
    profile = Output("known", SAMPLES).profile(journal)
    assert profile.missing.keys() >= {SAMPLES[0].work.key, "broadcast over node", "broadcast over node-gpu"}
    text = profile_text(profile)
    assert "#   broadcast over gpu: rank 3 [[was]]  lost" in text
    assert parse_cluster(text) == profile.cluster


@pytest.mark.parametrize(
    ("kept", "missing"), [("mm", "no collective along node was measured"), ("all", "no op was measured")]
)
def test_too_few_measurements_are_refused(kept: str, missing: str):
    journal = made_up_journal(MESH, SAMPLES, [1.0] * 4)
    journal.seconds = {name: found for name, found in journal.seconds.items() if name.startswith(kept)}
    with pytest.raises(ProfileError, match=missing):
        Output("known", SAMPLES).profile(journal)


def test_axes_of_one_rank_are_not_measured():
    assert groups_of(Mesh.of(node=1, gpu=4)) == (("gpu",),)
    assert groups_of(Mesh.of(gpu=1)) == ()
    assert groups_of(MESH) == (("node",), ("gpu",), ("node", "gpu"))


def test_sizes_can_be_split_among_all_ranks():
    assert sizes_between(64, 5000, 16) == (64, 1024, 5000)
    found = {each.whole for each in exchanges(Mesh.of(gpu=8), "gloo", (64, 1000)) if each.kind == "all_to_all"}
    assert found == {256, 768}


def test_hierarchical_collectives_are_over_two_axes():
    found = {(each.kind, each.axes) for each in exchanges(MESH, "gloo", (64,)) if each.method == "hierarchical"}
    assert {kind for kind, _ in found} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    assert {axes for _, axes in found} == {("node", "gpu")}


def test_direct_exchanges_are_for_gloo_alone():
    gloo, nccl = ({each.curve for each in exchanges(Mesh.of(gpu=2), name, (64,))} for name in ("gloo", "nccl"))
    assert "all_gather:padded" in gloo
    assert {"all_gather", "all_gather:grouped_broadcast"} <= nccl
    assert not any(name.endswith(("direct", "padded")) for name in nccl)


def test_disturbed_rounds_count_only_without_quiet_rounds():
    journal = Journal({}, {"a": [[3.0], [1.0], [2.0], [9.0]], "b": [[5.0], [4.0], [7.0]]})
    assert journal.quiet_rounds("a") == journal.seconds["a"]
    journal.others = {"a": [0.05, 0.0, 0.01, 1.5], "b": [0.9, 0.5]}
    assert sorted(journal.quiet_rounds("a")) == [[1.0], [2.0], [3.0]]
    assert sorted(journal.quiet_rounds("b")) == [[4.0], [5.0]]


@pytest.mark.parametrize("empty", [[], [[1.0], []]])
def test_a_journal_with_one_task_that_was_not_measured_is_refused(empty: list[list[float]], tmp_path: Path):
    path = tmp_path / "journal.json"
    journal = made_up_journal(MESH, SAMPLES, [1.0] * 4)
    journal.save(path)
    assert Journal.load(path) == journal
    replace(journal, seconds={**journal.seconds, "another": empty}).save(path)
    with pytest.raises(ProfileError, match="seconds has a task without a measurement; start over without --resume"):
        Journal.load(path)


def test_times_are_made_to_rise_with_the_size():
    points = [(1.0, 2.0), (4.0, 8.0), (16.0, 2.0), (64.0, 16.0)]
    assert [size for size, _ in rising(points)] == [1.0, 4.0, 16.0, 64.0]
    assert [seconds for _, seconds in rising(points)] == pytest.approx([2.0, 4.0, 4.0, 16.0])
    falling = [(1.0, 8.0), (2.0, 4.0), (4.0, 2.0)]
    assert [seconds for _, seconds in rising(falling)] == pytest.approx([4.0, 4.0, 4.0])
    assert rising([]) == []


def test_one_slow_measurement_does_not_raise_its_neighbours():
    points = [(1.0, 9.0), (4.0, 2.0), (16.0, 2.0), (64.0, 2.5)]
    assert [seconds for _, seconds in rising(points)] == pytest.approx([2.0, 2.0, 2.0, 2.5])


def test_delays_are_the_median_of_the_rounds():
    journal = made_up_journal(MESH, SAMPLES, [1.0] * MESH.device_count)
    journal.delays = [[(1e-3, -1e-4), (1e-2, 2e-3)], [(1e-3, 1e-4), (1e-2, 3e-3)], [(1e-3, -2e-4), (1e-2, 9e-3)]]
    assert profile_of(journal, SAMPLES, "late").cluster.interference.delays == ((1e-2, 3e-3),)


def test_ops_without_a_measurement_are_scaled_by_the_slowdown_of_their_family():
    base = Output("known", SAMPLES).profile(made_up_journal(MESH, SAMPLES, [1.0] * 4)).cluster
    families = sorted({each.work.family for each in SAMPLES})
    inside = tuple(each for each in SAMPLES if each.work.family == families[0])
    known, unknown = inside[::2], inside[1::2]
    journal = made_up_journal(MESH, known, [1.0] * 4)
    for each in known:
        seconds = 1.5 * op_seconds(base.devices[0], each.work)
        journal.seconds[each.work.key] = [[seconds] * 4]
    (device,) = Output("known", known, base).profile(journal).cluster.devices
    for each in known:
        assert op_seconds(device, each.work) == pytest.approx(1.5 * op_seconds(base.devices[0], each.work))
    for each in unknown:
        assert op_seconds(device, each.work) == pytest.approx(1.5 * op_seconds(base.devices[0], each.work))
    others = [each for each in SAMPLES if each.work.family == families[1]]
    assert [op_seconds(device, each.work) for each in others] == [
        op_seconds(base.devices[0], each.work) for each in others
    ]
