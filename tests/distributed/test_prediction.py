"""A plan is timed on ranks and predicted, as `benchmarks/prediction.py` does with fifty."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from _prediction_cases import plan
from _prediction_ranks import time_steps
from _prediction_study import load_module, predicted

from shardwright.api.local_cluster import generic_cluster
from shardwright.models.mlp import mlp_step
from shardwright.runtime import run_ranks

pytestmark = pytest.mark.distributed
STEP = partial(mlp_step, (12, 32, 10), batch=8)


def test_plans_run_in_turns_and_are_predicted_from_what_was_kept(tmp_path: Path) -> None:
    cluster = generic_cluster(2)
    plans = {form: plan(STEP(), form, cluster) for form in ("dp", "zero3")}
    programs = [(form, each.program) for form, each in plans.items()]
    for turns in run_ranks(time_steps, 2, STEP, programs, 0.1):
        assert list(turns) == list(plans)
        assert all(turn.wall >= sum(turn.steps) > 0 for each in turns.values() for turn in each)
    plans["dp"].save(tmp_path)
    assert predicted(load_module(tmp_path / "step.mlir"), cluster).seconds == plans["dp"].report["predicted_step_s"]
