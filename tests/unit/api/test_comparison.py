"""The measure of the difference between two runs."""

import math

import pytest
import torch

from shardwright.api.checking.comparison import Worst, assemble, largest, measure


def test_the_largest_error_of_each_kind_is_named():
    expected = {
        ("gradient", "a"): torch.tensor([3.0, 4.0]),
        ("gradient", "b"): torch.ones(4),
        ("loss", ""): torch.ones(()),
    }
    found = {**expected, ("gradient", "b"): torch.full((4,), 1.5)}
    assert measure(found, expected, 2) == {
        "gradient": Worst("gradient", 0.5, "b", 2),
        "loss": Worst("loss", 0.0, "", 2),
    }


def test_a_tensor_of_noise_is_measured_relative_to_its_kind():
    expected = {("gradient", "large"): torch.full((1,), 100.0), ("gradient", "noise"): torch.full((1,), 1e-9)}
    found = {**expected, ("gradient", "noise"): torch.full((1,), 2e-9)}
    assert measure(found, expected, 1)["gradient"].error == pytest.approx(1e-9 / 0.1)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {("loss", ""): torch.ones(1)},
        {("loss", ""): torch.ones((), dtype=torch.float64)},
        {("loss", ""): torch.tensor(math.nan)},
        {("loss", ""): torch.tensor(math.inf)},
    ],
    ids=["missing", "misshapen", "another dtype", "nan", "infinite"],
)
def test_values_that_cannot_be_compared_have_infinite_error(found: dict[tuple[str, str], torch.Tensor]):
    assert measure(found, {("loss", ""): torch.ones(())}, 1)["loss"].error == math.inf


def test_zeros_agree_with_zeros():
    zeros = {("buffer", "count"): torch.zeros(3, dtype=torch.long)}
    assert measure(zeros, zeros, 1)["buffer"].error == 0.0


def test_of_equal_errors_the_first_is_kept():
    errors = [Worst("loss", 0.0, "", 1), Worst("loss", 0.0, "", 2)]
    assert largest(errors) == {"loss": errors[0]}


def test_parts_are_assembled_to_the_full_value():
    whole = torch.arange(6.0).reshape(2, 3)
    parts = [(((0, 2), (0, 2)), whole[:, :2]), (((0, 2), (2, 3)), whole[:, 2:])]
    found = assemble(whole, parts)
    assert found is not None
    assert torch.equal(found, whole)


def test_the_copy_with_the_largest_error_counts():
    expected = torch.zeros(2)
    copies = [(((0, 2),), torch.tensor([0.0, error])) for error in (0.0, 3.0, 1.0)]
    found = assemble(expected, copies)
    assert found is not None
    assert found.tolist() == [0.0, 3.0]


def test_a_missing_or_misshapen_part_has_infinite_error():
    expected = {("loss", ""): torch.zeros(4)}
    lacking = assemble(torch.zeros(4), [(((0, 2),), torch.zeros(2))])
    assert measure({("loss", ""): lacking}, expected, 1)["loss"].error == math.inf
    misshapen = assemble(torch.zeros(4), [(((0, 4),), torch.zeros(3))])
    assert measure({("loss", ""): misshapen}, expected, 1)["loss"].error == math.inf
