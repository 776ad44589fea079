"""With `on_nan="skip"`, a step with an infinite or NaN loss or gradient changes nothing, under any plan."""

from __future__ import annotations

import pytest
import skipped_ranks

from shardwright.runtime.spawn import run_ranks


@pytest.fixture(scope="module")
def found() -> list[dict[str, list[str]]]:
    return run_ranks(skipped_ranks.skips, 2)


@pytest.mark.distributed
@pytest.mark.parametrize("plan", skipped_ranks.PLANS)
def test_training_continues_as_on_one_device_without_these_batches(plan: str, found: list[dict[str, list[str]]]):
    assert [rank[plan] for rank in found] == [[], []]
