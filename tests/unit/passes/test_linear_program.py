"""Linear programs as passes formulate them."""

import pytest

from shardwright.passes.analysis.linear_program import LinearProgram


def test_a_sum_is_minimized_at_a_corner():
    program = LinearProgram()
    x, y = program.variable(0.0), program.variable(0.0, 3.0)
    program.limit({x: 1.0, y: 2.0}, 8.0)
    assert program.minimized({x: 2.0, y: 1.0}) == pytest.approx([2.0, 3.0])


def test_limits_that_exclude_one_another_have_no_optimum():
    program = LinearProgram()
    x = program.variable(0.0, 1.0)
    program.limit({x: 1.0}, low=2.0)
    assert program.minimized({x: 1.0}) is None


def test_a_sum_without_a_least_has_no_optimum():
    program = LinearProgram()
    assert program.minimized({program.variable(0.0): -1.0}) is None
