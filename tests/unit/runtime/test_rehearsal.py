"""Seconds of ops from the ticks of a rehearsal."""

import pytest

from shardwright.runtime.profile.rehearsal import by_rank, mean_by_key


def test_an_op_lasts_until_the_next_tick():
    ticks = [(0, 0.0), (1, 1.0), (2, 4.0), (0, 5.0), (None, 8.0), (1, 90.0), (None, 91.0)]
    assert mean_by_key(["mm", "", "relu"], ticks) == {"mm": 2.0, "relu": 1.0}


def test_a_rank_without_an_op_gets_the_mean_of_the_other_ranks():
    found = by_rank([{"mm": 1.0, "add": 5.0}, {"mm": 2.0}, {"mm": 6.0, "add": 7.0}])
    assert found == {"mm": [1.0, 2.0, 6.0], "add": [5.0, pytest.approx(6.0), 7.0]}
