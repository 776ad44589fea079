"""Parameters and optimizer states as DTensors: other tools that load them continue training as the step does."""

from __future__ import annotations

import re
from typing import Any

import pytest
import state_ranks

from shardwright.runtime.spawn import run_ranks

REFUSED = {
    "missing": r"was given no 'rise\.weight'; give all parameters",
    "unknown": r"was given 'rise\.wait', which the model does not have",
    "shape": r"was given 'rise\.weight' in shape \(3, 8\); expected \(16, 8\)",
    "other ranks": r"was given a different '[^']+' on rank 1 than on rank 0; give all ranks the same",
}


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return run_ranks(state_ranks.on_two, 2)


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    return run_ranks(state_ranks.on_four, 4)


@pytest.mark.distributed
@pytest.mark.parametrize("case", state_ranks.ON_TWO)
def test_a_step_saves_and_loads_its_state(case: str, two: list[dict[str, Any]]):
    assert [rank[case] for rank in two] == [[], []]


@pytest.mark.distributed
@pytest.mark.parametrize("case", state_ranks.ON_FOUR)
def test_state_on_two_axes_and_in_stages(case: str, four: list[dict[str, Any]]):
    assert [rank[case] for rank in four] == [[]] * 4


@pytest.mark.distributed
def test_weights_that_do_not_fit_are_refused_and_change_nothing(two: list[dict[str, Any]]):
    for rank in two:
        assert rank["refused"].keys() == REFUSED.keys()
        for case, told in rank["refused"].items():
            assert re.search(REFUSED[case], told), told
