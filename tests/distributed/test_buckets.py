"""Collectives on buckets of large and small tensors, call by call and in one launch, do not change operands."""

from __future__ import annotations

import pytest
from bucket_cases import run_all

from shardwright.runtime import run_ranks


@pytest.mark.parametrize("smalls", [0, 1, 3])
def test_a_bucket_is_right_in_one_launch_too(smalls: int):
    assert run_ranks(run_all, 2, smalls) == [[], []]
