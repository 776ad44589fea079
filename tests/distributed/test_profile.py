"""Profiling local ranks: the written cluster can be planned for; a lost rank costs only missing measurements."""

from dataclasses import replace
from pathlib import Path

import lost_rank
import pytest

from shardwright.api.calibration.local_cluster import generic_cluster
from shardwright.api.calibration.op_families import family_samples
from shardwright.api.calibration.op_samples import rehearsal_of, samples_of_plan
from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.steps import find_step
from shardwright.ir.cluster_file import load_cluster
from shardwright.ir.mesh import Mesh
from shardwright.runtime.profile.journal import Journal
from shardwright.runtime.profile.result import Output
from shardwright.runtime.profile.session import ProfileRequest, profile_here
from shardwright.runtime.spawn import RankError, run_ranks

pytestmark = pytest.mark.distributed

SAMPLES = tuple(each for each in family_samples(("float32",), quick=True) if each.work.bytes < 1e5)
REQUEST = ProfileRequest(Mesh.of(gpu=2), SAMPLES, seconds=1.0)


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the progress file of a profile that lost a rank."""
    path = tmp_path_factory.mktemp("profile") / "progress.json"
    with pytest.raises(RankError, match=r"rank 1 of 2 was killed by SIGKILL"):
        run_ranks(lost_rank.profile_and_die, 2, replace(REQUEST, progress=path))
    return path


def test_a_lost_rank_leaves_a_cluster_that_can_be_planned_for(lost: Path, tmp_path: Path):
    journal = Journal.load(lost)
    assert journal.trouble == "another rank was lost"
    profile = Output("lost", SAMPLES).write(journal, tmp_path / "lost.toml")
    assert profile.missing["broadcast over gpu"] == journal.trouble
    assert "# PARTIAL" in (tmp_path / "lost.toml").read_text()
    compile_step(find_step("mlp-tiny"), load_cluster(tmp_path / "lost.toml"))


def test_a_profile_resumes_where_it_stopped(lost: Path, tmp_path: Path):
    before = Journal.load(lost)
    resumed = run_ranks(profile_here, 2, replace(REQUEST, progress=lost, resume=True))[0]
    assert resumed.trouble == ""
    for name, rounds in before.seconds.items():
        assert resumed.seconds[name][: len(rounds)] == rounds
    assert len(resumed.seconds) > len(before.seconds)
    found = Output("whole", SAMPLES).write(resumed, tmp_path / "whole.toml").cluster
    assert load_cluster(tmp_path / "whole.toml") == found
    assert {name for name, _, _ in found.links[0].points} >= {"all_reduce", "all_gather:padded", "broadcast"}
    assert {rate.family for rate in found.devices[0].rates} >= {"contractions", "elementwise", "update"}


def test_messages_pass_in_both_pairings_of_three_ranks():
    journal = run_ranks(profile_here, 3, ProfileRequest(Mesh.of(gpu=3), (), seconds=0.3))[0]
    assert {f"{name} over gpu of 64 bytes" for name in ("send", "send:shifted")} <= journal.seconds.keys()


def test_a_profile_of_another_job_is_refused(lost: Path):
    with pytest.raises(RankError, match=r"is of another job: mesh was \[\['gpu', 2\]\]"):
        run_ranks(profile_here, 1, replace(REQUEST, mesh=Mesh.of(gpu=1), progress=lost, resume=True))


def test_the_ops_of_a_plan_are_measured():
    cluster = replace(generic_cluster(2), name="pair")
    module = compile_step(find_step("mlp-tiny"), cluster).module
    samples = samples_of_plan(module)
    journal = run_ranks(profile_here, 2, ProfileRequest(cluster.mesh, samples, 0.3, network=False))[0]
    table = dict(Output("pair", samples, cluster).profile(journal).cluster.devices[0].table)
    assert not journal.left_out
    assert table.keys() == {sample.work.key for sample in samples}
    assert {key.partition("(")[0] for key in table} >= {"addmm", "mm", "foreach"}


@pytest.mark.parametrize("step", ["mlp-tiny", "bert-switch-tiny"])
def test_the_ops_of_a_plan_are_timed_within_its_program(step: str):
    cluster = replace(generic_cluster(2), name="pair")
    module = compile_step(find_step(step), cluster, PlanOptions("eliminate")).module
    samples, rehearsal = samples_of_plan(module), rehearsal_of(module, step)
    request = ProfileRequest(cluster.mesh, samples, 0.3, network=False, rehearsals=(rehearsal,))
    journal = run_ranks(profile_here, 2, request)[0]
    assert not journal.left_out
    named = {key for of_rank in rehearsal.keys for key in of_rank} - {""}
    assert journal.seconds.keys() == named
    assert named >= {sample.work.key for sample in samples}
    # Ops that make views also take time in a program.
    assert any(key.startswith("t(") for key in named)
    table = dict(Output("pair", samples, cluster).profile(journal).cluster.devices[0].table)
    assert table.keys() == named
    assert min(table.values()) > 0


def test_a_plan_that_fails_on_random_numbers_is_skipped_and_its_ops_run_in_loops():
    cluster = replace(generic_cluster(2), name="pair")
    # Both ranks fail at the same op, so neither waits for the other.
    module = compile_step(find_step("mlp-tiny"), cluster, PlanOptions(idle="no")).module
    samples, good = samples_of_plan(module), rehearsal_of(module, "mlp-tiny")
    bad = replace(good, text=good.text.replace("aten.relu.default(", "aten.bitwise_not.default("))
    request = ProfileRequest(cluster.mesh, samples, 0.3, network=False, rehearsals=(bad,))
    journal = run_ranks(profile_here, 2, request)[0]
    assert list(journal.left_out) == ["rehearsal of mlp-tiny"]
    assert journal.left_out["rehearsal of mlp-tiny"].startswith("it fails on made up numbers: ")
    assert journal.seconds.keys() == {sample.work.key for sample in samples}
