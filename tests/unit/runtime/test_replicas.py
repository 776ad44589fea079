"""Checksums of replicas: every bit counts, and the ranks that differ are named."""

from __future__ import annotations

import pytest
import torch

from shardwright.runtime.replicas import _minority, _relative, checksum, samples

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.complex64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (7,), (4, 5), (0, 3)])
def test_a_checksum_changes_with_any_bit(dtype: torch.dtype, shape: tuple[int, ...]):
    value = torch.full(shape, 3, dtype=dtype)
    same, other = value.clone(), value.clone()
    if value.numel():
        other.reshape(-1).view(torch.uint8)[-1] ^= 1
    assert checksum(value) == checksum(same)
    assert (checksum(value) == checksum(other)) == (not value.numel())


def test_a_checksum_does_not_depend_on_strides():
    value = torch.arange(12.0).reshape(3, 4)
    assert checksum(value.t()) == checksum(value.t().contiguous())


def test_samples_are_few_and_evenly_spaced():
    assert samples(torch.arange(800.0)) == [0, 100, 200, 300, 400, 500, 600, 700]
    assert samples(torch.tensor(2.5)) == [2.5]
    assert samples(torch.empty(0)) == []


@pytest.mark.parametrize(
    ("values", "odd"), [([1, 1, 1], []), ([1, 2, 1], [1]), ([2, 1, 1], [0]), ([1, 2], [1]), ([1, 2, 3, 2], [0, 2])]
)
def test_the_ranks_that_differ_are_the_minority_or_the_later_ones(values: list[int], odd: list[int]):
    assert _minority(values) == odd


def test_the_relative_difference_of_two_replicas():
    assert _relative([1.0, -2.0], [1.0, -2.0]) == 0
    assert _relative([1.0, -2.0], [1.0, -1.9]) == pytest.approx(0.05)
    assert _relative([float("nan")], [1.0]) == 1.0
    assert _relative([], []) == 0
