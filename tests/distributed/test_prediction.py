"""A plan is timed on ranks and predicted, as `benchmarks/prediction.py` does with fifty plans."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from _prediction_cases import plan
from _prediction_ranks import time_steps
from _prediction_study import predicted

from shardwright.api.calibration.local_cluster import generic_cluster
from shardwright.models.mlp import mlp_step
from shardwright.runtime import run_ranks
from shardwright.tools.ir_input import load_module

pytestmark = pytest.mark.distributed
STEP = partial(mlp_step, (12, 32, 10), batch=8)


def test_a_plan_runs_in_turns_and_is_predicted_from_what_was_kept(tmp_path: Path) -> None:
    cluster = generic_cluster(2)
    made = plan(STEP(), "zero3", cluster)
    by_rank = run_ranks(time_steps, 2, STEP, made.program, 0.1)
    assert len({tuple(len(turn.steps) for turn in turns) for turns in by_rank}) == 1
    for turns in by_rank:
        assert min(len(turn.steps) for turn in turns) >= 2
        assert all(turn.wall >= sum(turn.steps) > 0 for turn in turns)
    made.save(tmp_path)
    assert predicted(load_module(str(tmp_path / "step.mlir")), cluster).seconds == made.report["predicted_step_s"]
