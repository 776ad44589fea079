"""The benchmark that compares searched plans with plain ones, on one small pair and on pairs generated from numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from _plain_plans import KEPT, Workshop, any_mesh_will_do, cuts, limited, plain_plans, splits
from _random_pairs import MOST_DEVICES, find_any_cluster, random_cluster, random_step
from plan_quality import DECISIONS, Options, Row, command, compare, faults, prepared_step, summary_of

from shardwright.ir.cluster_file import cluster_toml, find_cluster, parse_cluster

QUICK = Options(plan="search-plan{work=1}", most=1, only="dp on 4")


def test_a_pair_is_planned_and_compared() -> None:
    row = compare("mlp-tiny", "local-4", QUICK)
    assert row.failure == ""
    assert row.best == "dp on 4"
    assert row.ratio is not None
    assert row.ratio <= 1.0
    assert row.losses == ()
    assert not row.is_failure


def test_a_search_with_a_decision_counts_as_a_plan_by_hand() -> None:
    pinned = DECISIONS[0]
    row = compare("mlp-tiny", "local-4", replace(QUICK, only=pinned, decisions=True))
    assert (row.failure, row.fitting, row.best) == ("", 1, pinned)
    assert command(row, pinned).endswith(f"--only '{pinned}' --decisions")


def test_an_impossible_pipeline_is_a_failure_of_the_search() -> None:
    row = compare("mlp-tiny", "local-4", Options(plan="search-plan{stages=64}", most=1, only="dp on 4"))
    assert row.failure.startswith("refused")
    assert row.is_failure
    assert any(line.startswith("FAILED mlp-tiny, local-4: refused") for line in faults(row))


def test_a_loss_is_listed_with_a_command() -> None:
    row = Row("mlp", "local-4", chosen="a", seconds=2.0, best="b", best_seconds=1.0, losses=(("b", 1.0),))
    (line,) = faults(row)
    assert "2.0000x" in line
    assert line.endswith(command(row, "b"))
    assert summary_of([row])["worst ratio"] == 2.0
    assert summary_of([row])["slower than a plan by hand"] == 1


def test_every_family_of_plain_plans_is_generated() -> None:
    plans = list(plain_plans(prepared_step("mlp-tiny"), find_cluster("uneven-4")))
    assert {plan.family for plan in plans} == {
        "AMP",
        "FSDP",
        "accumulation",
        "additive optimum",
        "data parallel",
        "even pipeline",
        "hybrid",
        "overlap",
        "part",
        "proportional",
        "tensor parallel",
    }
    assert len({(plan.name, plan.mesh) for plan in plans}) == len(plans)
    assert {plan.family for plan in limited(plans, 1)} >= {"data parallel", "hybrid", "proportional", "tensor parallel"}


def test_a_plain_pipeline_is_a_program() -> None:
    prepared, cluster = prepared_step("mlp-tiny"), find_cluster("local-4")
    plan = next(each for each in plain_plans(prepared, cluster) if each.family == "AMP" and "2 stages" in each.name)
    judged = Workshop(prepared, cluster).judge(plan)
    assert judged.counts, judged.refusal


def test_a_plan_that_does_not_fit_keeps_fewer_activations() -> None:
    prepared, cluster = prepared_step("gpt2-tiny"), find_cluster("local-4")
    plan = next(each for each in plain_plans(prepared, cluster) if each.name == "zero3 on 4")
    whole = Workshop(prepared, cluster)
    assert whole.judge_fitting(plan) == whole.judge(plan)
    least = min(whole.judge(plan.keeping(fraction)).peak_bytes for fraction in KEPT)
    (device,) = cluster.devices
    tight = Workshop(prepared, replace(cluster, devices=(replace(device, memory=float(least)),)))
    assert not tight.judge(plan).counts
    judged = tight.judge_fitting(plan)
    assert judged == next(each for each in (tight.judge(plan.keeping(part)) for part in KEPT) if each.counts)


def test_degrees_follow_the_axes_if_no_other_mesh_is_possible() -> None:
    free, bound = find_cluster("hidup-2x4-10g"), parse_cluster(_grid())
    assert any_mesh_will_do(free)
    assert not any_mesh_will_do(bound)
    assert [mesh.parts(inner) for mesh, _, inner in splits(free)] == [2, 4, 8]
    assert [(outer, inner) for _, outer, inner in splits(bound)] == [
        (("gpu",), ("node",)),
        (("node",), ("gpu",)),
        ((), ("node", "gpu")),
    ]


def _grid() -> str:
    """Return a cluster of two axes without hosts."""
    device = '[device.a]\nflops = { float32 = 1e9 }\nmemory_bandwidth = 1e9\nmemory = "1GiB"\nlaunch = 0.0\n'
    links = "".join(f"[link.{axis}]\nlatency = 1e-6\nbandwidth = 1e9\n" for axis in ("node", "gpu"))
    return f'version = 3\nname = "grid"\nmesh = ["node=2", "gpu=2"]\n{device}{links}'


@pytest.mark.parametrize(("rows", "expected"), [(8, [2, 4, 8]), (12, [2, 4]), (7, [7]), (1, [])])
def test_micro_batches_divide_the_batch(rows: int, expected: list[int]) -> None:
    assert cuts(rows) == expected


def test_random_clusters_are_valid_and_reproducible() -> None:
    clusters = [parse_cluster(random_cluster(number, 1e9)) for number in range(200)]
    assert all(1 <= cluster.mesh.device_count <= MOST_DEVICES for cluster in clusters)
    assert {len(cluster.kinds_used) for cluster in clusters} == {1, 2, 3, 4}
    assert any(cluster.topology is None for cluster in clusters)
    assert parse_cluster(cluster_toml(clusters[0])) == clusters[0]
    first = clusters[0]
    assert (str(first.mesh), f"{first.memory:.3g}", random_step(0)[0]) == EXPECTED


EXPECTED = ('<["node"=6, "gpu"=6]>', "2.21e+09", "llama-tiny")
"""The mesh and memory of cluster 0 for a step that needs 1e9 bytes, and the name of step 0."""


def test_memory_scales_with_the_needs_of_the_step() -> None:
    small, large = (find_any_cluster("random-0", lambda need=need: need) for need in (1e6, 1e9))
    assert large.memory == pytest.approx(1000 * small.memory, rel=0.02)
