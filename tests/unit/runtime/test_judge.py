"""The judge finds the rank at fault from reports: every rule, and cases that are not faults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from shardwright.runtime.faults import FaultBounds
from shardwright.runtime.groups import TIMEOUT
from shardwright.runtime.judge import Judge, Report

BOUNDS = FaultBounds(gone=4.0, silent=10.0, start=30.0, plan=40.0, save=20.0)
WAITS = Report(phase="step", step=4, calls=9, what="all_reduce along axes ['gpu']")
COMPUTES = Report(phase="step", step=4, calls=8)
READS = Report(phase="script", step=3, calls=8, line="train.py:41 in load")
LEFT = Report(phase="left", step=3)


def judged(
    *course: list[Report], every: float = 0.5, silent: tuple[int, ...] = (), states: Mapping[int, str] = {}
) -> str:
    """Return the verdict on a sequence of reports; ranks of `silent` send only the first."""
    judge = Judge(BOUNDS, ["one", "two", "three"])
    for turn, reports in enumerate(course):
        beats = [replace(each, beat=0 if rank in silent else turn) for rank, each in enumerate(reports)]
        if verdict := judge.see(beats, turn * every, states):
            return verdict.text
    return ""


def lasting(seconds: float, *reports: Report) -> list[list[Report]]:
    """Return the same reports for `seconds`."""
    return [list(reports)] * round(seconds / 0.5)


def test_a_hung_rank_is_named_with_its_line_after_the_bound():
    assert judged(*lasting(9.5, WAITS, READS, WAITS)) == ""
    told = judged(*lasting(11, WAITS, READS, WAITS))
    assert told.startswith(
        "rank 1 (two) does not answer in the script's code after step 3, train.py:41 in load: rank 0 (one) has waited "
        "10 s in step 4, in all_reduce along axes ['gpu']"
    )


def test_a_stopped_rank_is_named_even_if_its_last_report_was_a_wait():
    told = judged(*lasting(11, WAITS, WAITS, WAITS), silent=(2,))
    assert told.startswith("rank 2 (three) does not answer in step 4, in all_reduce")


def test_a_busy_rank_without_waiting_ranks_is_not_at_fault():
    assert judged(*lasting(60, READS, COMPUTES, READS)) == ""


def test_ranks_that_make_progress_are_not_at_fault():
    course = [[WAITS, replace(COMPUTES, calls=number), READS] for number in range(60)]
    assert judged(*[[a, b, replace(c, calls=number)] for number, (a, b, c) in enumerate(course)]) == ""


def test_planning_may_take_long_but_a_stopped_planner_is_found():
    patient = replace(WAITS, what="a broadcast from rank 0", patient="plan", step=0)
    plans = Report(line="train.py:3 in main")
    assert judged(*lasting(39.5, plans, patient, patient)) == ""
    told = judged(*lasting(41, plans, patient, patient))
    assert told.startswith("rank 0 (one) does not answer in the script's code before the first step, train.py:3 in ")
    assert told.endswith("or raise plan of FaultBounds if that may take so long")
    told = judged(*lasting(20, plans, patient, patient), silent=(0,))
    assert told.startswith("rank 0 (one) does not answer")
    assert told.endswith("or raise silent of FaultBounds if that may take so long")


def test_a_save_may_take_long_but_is_bounded():
    patient = replace(WAITS, phase="script", what="the checkpoint that all ranks write or read", patient="save")
    assert judged(*lasting(19.5, patient, READS, patient)) == ""
    told = judged(*lasting(21, patient, READS, patient))
    assert told.startswith("rank 1 (two) does not answer in the script's code after step 3, train.py:41 in load")
    assert told.endswith("or raise save of FaultBounds if that may take so long")


def test_a_deadlock_of_ranks_is_reported():
    behind = replace(WAITS, step=3, what="all_gather along axes ['gpu']")
    told = judged(*lasting(11, WAITS, behind, WAITS))
    assert told.startswith("rank 1 (two) does not answer in step 3, in all_gather")
    assert "all ranks wait for each other" in judged(*lasting(11, WAITS, WAITS, WAITS))


def test_a_rank_that_left_early_is_named_if_others_wait():
    assert "rank 1 (two) left early: its script ended after step 3" in judged(*lasting(3, WAITS, LEFT, WAITS))
    assert judged(*lasting(60, READS, LEFT, READS)) == ""


def test_ranks_that_leave_together_after_a_long_wait_are_not_at_fault():
    """The report of one rank arrives a beat after that of another, and until then says that it waits."""
    assert judged(*lasting(8, WAITS, COMPUTES, WAITS), [WAITS, LEFT, WAITS], [LEFT, LEFT, LEFT]) == ""


def test_different_numbers_of_steps_are_reported_at_the_end():
    told = judged([LEFT, replace(LEFT, step=5), LEFT])
    assert told.startswith("the ranks ran different numbers of training steps: 3 on rank 0 (one), 5 on rank 1 (two)")
    assert judged([LEFT, LEFT, LEFT]) == ""


def test_a_rank_of_another_machine_is_gone_when_a_connection_breaks_and_it_is_silent():
    assert "rank 1 (two) is gone" in judged(*lasting(4, replace(WAITS, lost=True), WAITS, WAITS), silent=(1,))
    assert judged(*lasting(4, replace(WAITS, lost=True), WAITS, WAITS)) == ""


@pytest.mark.parametrize(
    ("busy", "named"), [((0.1, 0.1, 0.3), True), ((0.1, 0.1, 0.15), False), ((0.1, 0.0, 0.9), False)]
)
def test_a_slow_rank_causes_one_warning(busy: tuple[float, ...], named: bool):
    judge = Judge(BOUNDS, ["one", "two", "three"])
    assert judge.see([replace(COMPUTES, busy=each) for each in busy], 0.0) is None
    assert judge.slow().startswith("rank 2 (three) is slow") == named
    assert judge.slow() == ""


def test_ranks_are_compared_only_within_a_stage():
    judge = Judge(BOUNDS, ["one", "two", "three"], stages=[[0], [1, 2]])
    judge.see([replace(COMPUTES, busy=each) for each in (0.9, 0.1, 0.1)], 0.0)
    assert judge.slow() == ""


@pytest.mark.parametrize("bounds", [{"gone": 0.0}, {"silent": -1.0}, {"slow": -1.0}, {"plan": 0.0}])
def test_bounds_must_be_positive(bounds: dict[str, float]):
    with pytest.raises(ValueError, match="gone, silent, start, plan and save must be seconds above 0"):
        FaultBounds(**bounds)


def test_before_the_first_step_the_bound_is_longer_for_a_rank_that_answers():
    waits, makes = Report(what="the weights of rank 0"), Report(line="train.py:8 in make")
    assert judged(*lasting(BOUNDS.start - 1, waits, makes, waits)) == ""
    assert judged(*lasting(BOUNDS.start + 1, waits, makes, waits)).startswith(
        "rank 1 (two) does not answer in the script's code before the first step, train.py:8 in make: rank 0 (one) has "
        "waited 30 s in the script's code before the first step, in the weights of rank 0; check what it is doing "
        "there, or "
        "raise start of FaultBounds"
    )


FIRST = replace(WAITS, step=1, work=3.0)
BEGINS = Report(phase="step", step=1, work=3.0)


def test_before_its_first_step_a_rank_that_computes_may_take_until_start():
    """On a busy host the first step takes long, and reports arrive late."""

    def course(seconds: float) -> list[list[Report]]:
        works = (replace(BEGINS, work=3 + number // 10 / 10) for number in range(round(seconds / 0.5)))
        return [[FIRST, each, FIRST] for each in works]

    assert judged(*course(BOUNDS.start - 1)) == ""
    assert judged(*course(BOUNDS.start + 1)).startswith("rank 1 (two) does not answer in step 1: rank 0 (one) has ")
    assert judged(*lasting(BOUNDS.start - 1, FIRST, BEGINS, FIRST), silent=(1,)) == ""
    assert judged(*lasting(BOUNDS.start + 1, FIRST, BEGINS, FIRST), silent=(1,)).startswith("rank 1 (two) does not")


def test_before_its_first_step_a_hung_or_stopped_rank_is_found():
    assert judged(*lasting(11, FIRST, BEGINS, FIRST)).startswith("rank 1 (two) does not answer in step 1")
    stopped = judged(*lasting(11, FIRST, BEGINS, FIRST), silent=(1,), states={1: "stopped by a signal"})
    assert stopped.startswith("rank 1 (two) does not answer in step 1, stopped by a signal")
    made = replace(BEGINS, work=-1.0)
    assert judged(*lasting(11, FIRST, made, FIRST), silent=(1,)).startswith("rank 1 (two) does not answer in step 1")
    assert "all ranks wait for each other" in judged(*lasting(11, FIRST, FIRST, FIRST))


def test_collectives_wait_for_longer_than_any_bound_and_bounds_may_be_infinite():
    assert FaultBounds(plan=7200.0, silent=10.0).timeout == timedelta(seconds=7220)
    assert FaultBounds(start=1.0, plan=1.0, save=1.0).timeout == TIMEOUT
    assert FaultBounds(plan=math.inf).timeout > timedelta(days=7)
