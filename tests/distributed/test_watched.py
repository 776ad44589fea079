"""Observation of a job: ranges of torch.profiler by layer, and the logger."""

from __future__ import annotations

import re
from typing import Any

import pytest
import watched_ranks
from state_ranks import net
from update_ranges import without_update

from shardwright.ir.measured_steps import MeasuredSteps
from shardwright.runtime.spawn import run_ranks

LAYERS = ("rise", "middle", "again", "fall")


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    return run_ranks(watched_ranks.on_two, 2)


@pytest.mark.distributed
@pytest.mark.parametrize("plan", ["zero3", "accumulated"])
def test_a_profiler_shows_the_layers_and_changes_nothing(plan: str, seen: list[dict[str, Any]]):
    for rank in seen:
        found = rank[plan]
        assert found["losses"] == found["expected"]
        assert {f"{phase} {layer}" for phase in ("forward", "backward") for layer in LAYERS} <= found["ranges"]
        trained = {name.rpartition(".")[0] for name, _ in net().named_parameters()}
        assert not without_update(trained, found["ranges"])
        assert {f"forward {layer}" for layer in LAYERS} <= found["products"]
        assert "" not in found["products"]
        assert found["is plain again"]


@pytest.mark.distributed
def test_a_profiler_shows_collectives_by_kind_axes_and_layer(seen: list[dict[str, Any]]):
    for rank in seen:
        found = rank["zero3"]["communication"]
        kinds = {name.partition(",")[0] for name in found}
        for kind in ("all_gather", "reduce_scatter"):
            assert {f"{each} {kind} over a0" for each in ("start", "wait for")} <= kinds
        assert any(re.fullmatch(r"start reduce_scatter over a0, backward \S+", name) for name in found), found


@pytest.mark.distributed
@pytest.mark.parametrize("plan", ["measured", "staged"])
def test_measured_steps_have_the_same_losses(plan: str, seen: list[dict[str, Any]]):
    for rank in seen:
        assert rank[plan]["losses"] == rank[plan]["expected"]
        assert rank[plan]["text"] == seen[0][plan]["text"]
        # Both ranks use the clock of one machine.
        assert abs(rank[plan]["ahead"][1]) < 0.01
    (step,) = MeasuredSteps.parse(seen[0][plan]["text"]).steps
    assert [rank.rank for rank in step] == [0, 1]
    assert {each.key for each in step[0].traffic} == {each.key for each in step[1].traffic}
    for rank in step:
        assert {"forward", "backward", "update"} == set(rank.computed)
        overlap = rank.overlaps["all", "all"]
        assert 0 < overlap.communication <= rank.seconds
        assert 0 < overlap.compute <= rank.seconds
        assert overlap.overlapped <= min(overlap.compute, overlap.communication)
        # The rest of the time a rank waits for another to begin, or to compute.
        assert overlap.compute + overlap.exposed <= rank.seconds * 1.000001


@pytest.mark.distributed
def test_measured_traffic_has_its_axes_stages_and_phases(seen: list[dict[str, Any]]):
    (step,) = MeasuredSteps.parse(seen[0]["measured"]["text"]).steps
    assert {each.channel for rank in step for each in rank.traffic} == {"a0"}
    assert {(each.kind, each.phase) for each in step[0].traffic} >= {
        ("all_gather", "forward"),
        ("reduce_scatter", "backward"),
    }
    (step,) = MeasuredSteps.parse(seen[0]["staged"]["text"]).steps
    assert [rank.stage for rank in step] == [0, 1]
    sent = [(each.kind, each.channel, each.phase) for each in step[0].traffic]
    assert sent.count(("transfer", "stage 0 to 1", "forward")) >= 2
    assert sum(each[:2] == ("transfer", "stage 1 to 0") for each in sent) >= 2
    assert "rank 1 (stage 1)  all" in seen[0]["staged"]["table"]


@pytest.mark.distributed
def test_rank_0_logs_the_plan(seen: list[dict[str, Any]]):
    told = [(level, text) for level, text in seen[0]["logged"] if text.startswith("Net: ")]
    info = [text for level, text in told if level == "INFO"]
    phases = ("Net: captured the step in ", "Net: compiled 1 program in ", "Net: planned in ")
    assert all(text.startswith(phase) for text, phase in zip(info, phases, strict=False)), info
    assert re.match(r"Net: planned in \S+ m?s for 2 ranks \(a0=2\): ", info[2]), info
    predicted = r"Net: predicted step \S+ [mu]?s, of which .* waiting for .*; peak memory of a rank \S+ KiB$"
    assert re.match(predicted, info[3]), info
    assert any(level == "DEBUG" and "seconds of passes" in text for level, text in told)
    assert not any(level == "WARNING" for level, _ in told)
    assert not seen[1]["logged"]


@pytest.mark.distributed
def test_a_plan_that_splits_nothing_warns(seen: list[dict[str, Any]]):
    (warning,) = (text for level, text in seen[0]["alone"] if level == "WARNING")
    assert "splits nothing: each of 2 ranks computes the full step" in warning
