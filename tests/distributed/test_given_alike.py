"""Ranks with different weights, batches, learning rates or seeds get an error, or the values of rank 0."""

from __future__ import annotations

import re
from pathlib import Path

import given_ranks
import pytest

from shardwright.runtime.spawn import run_ranks

REFUSED = {
    "other batch": r"step 2: the ranks were given different global batches: items '0' of ranks 0 and 1 differ",
    "distributed sampler": r"step 1: the ranks were given different global batches: items '0', '1' .*step\.loader",
    "other rows": r"step 1: the ranks were given different rows: ranks 0 and 1 both .* rows 0 to 8 .*step\.sampler",
    "other rate": r"different learning rates: 0\.1 on rank 0, 0\.2 on rank 1",
    "other seed": r"different seeds: 0 on rank 0, 1 on rank 1; give all ranks the same",
    "other order": r"different arguments of step\.loader\(\): samples=48 seed=0 .*, samples=48 seed=1 .* on rank 1",
    "other sampler": r"different lengths or seeds of step\.sampler\(\): \(48, 0\) on rank 0, \(48, 1\) on rank 1",
    "other module": r"rank 0 has 0\.weight \[16, 6\] float32, .* rank 1 has 0\.weight \[17, 6\] float32",
    "numpy weights": r"the ranks 0 and 1 initialized the weights 'weight' differently",
    "eval mode": r"the model is in eval mode, but its step was planned in train mode: call model\.train\(\)",
    "autocast": r"under torch\.autocast, which has no effect on it",
    "changed inside": r"the parameter '0\.weight' was changed, which has no effect on training",
    "no module": r"load step\.state_dict\(\) into one that you build",
}


@pytest.fixture(scope="module")
def told() -> list[dict[str, str]]:
    return run_ranks(given_ranks.all_refusals, 2)


@pytest.mark.distributed
@pytest.mark.parametrize("case", REFUSED)
def test_different_arguments_are_refused_on_every_rank(case: str, told: list[dict[str, str]]):
    for rank in told:
        assert re.search(REFUSED[case], rank[case]), rank[case]


@pytest.mark.distributed
def test_without_a_seed_the_random_numbers_of_rank_0_make_the_weights(told: list[dict[str, str]]):
    assert [rank["same random state"] for rank in told] == ["", ""]


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 4])
def test_weights_are_those_of_rank_0_and_ranks_load_their_own_rows(world: int):
    assert run_ranks(given_ranks.weights_of_rank_0, world) == [[]] * world


@pytest.mark.distributed
def test_a_script_may_make_its_own_process_group(tmp_path: Path):
    expected, _ = given_ranks.trained_on_one_device(given_ranks.mlp(seed=0), list(range(6 * 8)))
    for rank in run_ranks(given_ranks.in_groups_of_a_script, 2, str(tmp_path)):
        assert list(rank) == ["", "cpu:gloo,cuda:gloo"]
        for losses in rank.values():
            assert losses == pytest.approx(expected, rel=1e-5)
