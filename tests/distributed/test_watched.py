"""What people watch a job by: ranges of torch.profiler by layer, and the logger."""

from __future__ import annotations

import re
from typing import Any

import pytest
import watched_ranks
from state_ranks import net
from update_ranges import without_update

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
def test_rank_0_says_what_was_planned(seen: list[dict[str, Any]]):
    told = [(level, text) for level, text in seen[0]["logged"] if text.startswith("Net: ")]
    info = [text for level, text in told if level == "INFO"]
    assert re.match(r"Net: planned in \S+ m?s for 2 ranks \(a0=2\): ", info[0]), info
    predicted = r"Net: predicted step \S+ [mu]?s, of which .* waiting for .*; peak memory of a rank \S+ KiB$"
    assert re.match(predicted, info[1]), info
    assert any(level == "DEBUG" and "seconds of passes" in text for level, text in told)
    assert not any(level == "WARNING" for level, _ in told)
    assert not seen[1]["logged"]


@pytest.mark.distributed
def test_a_plan_that_splits_nothing_warns(seen: list[dict[str, Any]]):
    (warning,) = (text for level, text in seen[0]["alone"] if level == "WARNING")
    assert "splits nothing: each of 2 ranks computes the full step" in warning
