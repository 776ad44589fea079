"""Training resumes from a checkpoint with the same results, and a damaged checkpoint is not loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoint_ranks
import pytest
from checkpoint_ranks import LAST, PLANS, SAVED
from state_ranks import adamw, net, plain_step

from shardwright.runtime.spawn import run_ranks

CASES = [(ranks, name) for ranks, plans in PLANS.items() for name in plans]

BACK = "falling back to the previous checkpoint"
TOLD: dict[str, tuple[int | str, str]] = {
    "nothing": (LAST, ""),
    "flipped": (SAVED, "__1_0.distcp is not what was written: its SHA-256 differs"),
    "torn": (SAVED, "bytes, "),
    "missing": (SAVED, "__1_0.distcp is missing"),
    "manifest": (SAVED, "manifest.json "),
    "unfinished": (SAVED, ""),
    "all": ("no checkpoint is complete", BACK),
    "empty": ("/empty has no checkpoint; step.save(folder) writes one", ""),
    "an extra that cannot be read": (LAST, ""),
    "a full disk": (LAST, ""),
    "another model": ("it was saved from another model", ""),
    "another optimizer": ("load the weights alone, by optimizer=False", ""),
    "another optimizer, weights alone": (LAST, ""),
}
"""The loaded step or the error, and the warning, by kind of damage."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """Return a folder with two checkpoints, and the losses of the run that wrote them."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    losses = run_ranks(checkpoint_ranks.saves, 2, str(folder))
    assert losses[0] == losses[1]
    first = folder.parent / "first"
    first.mkdir()
    (first / f"step-{SAVED:08d}").symlink_to(folder / f"step-{SAVED:08d}")
    return folder, losses[0]


@pytest.fixture(scope="module")
def found(saved: tuple[Path, list[float]]) -> dict[int, list[dict[str, Any]]]:
    """Return the results of each rank, by number of ranks."""
    return {ranks: run_ranks(checkpoint_ranks.goes_on, ranks, str(saved[0].parent)) for ranks in PLANS}


@pytest.mark.distributed
@pytest.mark.parametrize(("ranks", "plan"), CASES)
def test_any_plan_resumes_with_the_losses_of_the_saved_run(
    ranks: int, plan: str, saved: tuple[Path, list[float]], found: dict[int, list[dict[str, Any]]]
):
    expected = saved[1][SAVED:]
    for rank in found[ranks]:
        if plan == "zero3":
            assert rank[plan] == expected
        assert rank[plan] == pytest.approx(expected, rel=1e-10)


@pytest.mark.distributed
def test_a_job_with_more_or_fewer_ranks_starts_from_the_previous_plan(found: dict[int, list[dict[str, Any]]]):
    model = net()
    optimizer = adamw(model.named_parameters())
    expected = [plain_step(model, optimizer, number) for number in range(2 * len(PLANS))]
    before = None
    for at, (ranks, everyone) in enumerate(found.items()):
        for number, rank in enumerate(each["elastic"] for each in everyone):
            assert rank["differences"] == []
            assert rank["losses"] == pytest.approx(expected[2 * at : 2 * at + 2], rel=1e-10)
            assert rank["split"]
            if before is None:
                assert rank["begun"] is None
                continue
            begun = rank["begun"]
            assert begun["from_ranks"] == before
            assert 0 < begun["moved_bytes_bound"] <= begun["moved_bytes"] + begun["lost_bytes"]
            told = [each for each in rank["told"] if f"started from the plan of {before} ranks in " in each]
            assert len(told) == (number == 0), rank["told"]
        before = ranks


@pytest.mark.distributed
def test_the_folder_keeps_the_last_two_checkpoints(saved: tuple[Path, list[float]]):
    assert sorted(path.name for path in saved[0].iterdir()) == [f"step-{SAVED:08d}", f"step-{LAST:08d}"]


@pytest.mark.distributed
def test_a_damaged_checkpoint_is_not_loaded(saved: tuple[Path, list[float]]):
    everyone = run_ranks(checkpoint_ranks.damages, 2, str(saved[0]))
    for number, rank in enumerate(everyone):
        for name, (outcome, warning) in TOLD.items():
            loaded, told = rank[name]
            assert loaded == outcome if isinstance(outcome, int) else outcome in loaded, (name, loaded)
            if number == 0:
                assert any(warning in each for each in told) if warning else not told, (name, told)
