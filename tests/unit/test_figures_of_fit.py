"""Figures of merit of predictions in benchmarks, and their measurements."""

from __future__ import annotations

from typing import Any

import pytest
from _figures_of_fit import mean_error, median_error, pearson, regret, relative_errors, spearman
from _prediction_ranks import Turn, quiet_steps, statements, with_clock


def test_proportional_predictions_correlate_fully_and_have_the_error_of_their_factor() -> None:
    measured = [1.0, 2.0, 5.0, 3.0]
    predicted = [1.1 * each for each in measured]
    assert pearson(predicted, measured) == pytest.approx(1.0)
    assert relative_errors(predicted, measured) == pytest.approx([0.1] * 4)
    assert median_error(predicted, measured) == pytest.approx(0.1)


def test_errors_are_absolute() -> None:
    assert mean_error([0.5, 1.0, 1.1, 3.0], [1.0, 1.0, 1.0, 1.0]) == pytest.approx((0.5 + 0.1 + 2.0) / 4)
    assert median_error([0.5, 1.0, 1.1], [1.0, 1.0, 1.0]) == pytest.approx(0.1)


def test_spearman_depends_only_on_the_order() -> None:
    assert spearman([1.0, 2.0, 3.0], [1.0, 10.0, 1000.0]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert spearman([1.0, 1.0, 2.0], [1.0, 1.0, 2.0]) == pytest.approx(1.0)


def test_the_regret_is_the_excess_of_the_choice_over_the_best() -> None:
    measured = {"dp": 1.0, "tp": 1.2}
    assert regret({"dp": 3.0, "tp": 4.0}, measured) == 0.0
    assert regret({"dp": 4.0, "tp": 3.0}, measured) == pytest.approx(0.2)


def test_disturbed_steps_do_not_count() -> None:
    quiet, loud = Turn((1.0, 1.1), wall=2.1, others=0.01), Turn((2.0, 2.1), wall=4.1, others=3.0)
    assert quiet_steps([quiet] * 4 + [loud]) == [1.0, 1.1] * 4


def test_the_quietest_turns_count_if_all_are_disturbed() -> None:
    loud = [Turn((float(others),), wall=1.0, others=float(others)) for others in range(8, 0, -1)]
    assert quiet_steps(loud) == [1.0, 2.0, 3.0, 4.0]


def test_the_clock_is_read_around_every_statement() -> None:
    program = "def step(comm, x):\n    y = x + 1\n    del x\n    return y * 2\n"
    ticks: list[None] = []
    scope: dict[str, Any] = {"_line": lambda: ticks.append(None)}
    exec(with_clock(program), scope)
    assert scope["step"](None, 1) == 4
    assert statements(program) == ["y = x + 1", "del x"]
    assert len(ticks) == len(statements(program)) + 1
