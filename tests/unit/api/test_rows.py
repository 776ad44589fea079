"""Batch items have rows if their first dim has the size of the batch, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from time_cuts import FORMS
from torch import nn

import shardwright as sw
from shardwright.api.checking.check import check_interpreted
from shardwright.api.training_step import TrainingStep
from shardwright.passes.errors import PassError

SGD = partial(torch.optim.SGD, lr=0.1)
ROWS = 8


class Masked(nn.Module):
    """Attention with as many positions as the batch has rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        return (torch.softmax((h @ h.mT).masked_fill(mask, -1e9), -1) @ h).square().mean()


class Weighted(nn.Module):
    """A model with as many classes as the batch has rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, ROWS)

    def forward(self, x: torch.Tensor, weights: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layer(x), labels, weight=weights)


MASKED: Any = (torch.randn(ROWS, ROWS, 4), torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1))
WEIGHTED: Any = {"x": torch.randn(ROWS, 4), "weights": torch.rand(ROWS) + 0.1, "labels": torch.arange(ROWS)}


@pytest.mark.parametrize(
    ("model", "batch", "rows", "told"),
    [
        (Masked, MASKED, [0], r"combines rows with one another.*; batch item '1' has a first dim of 8 as well.* rows="),
        (Weighted, WEIGHTED, ["x", "labels"], "batch items 'weights', 'labels' have a first dim of 8 as well.* rows="),
    ],
)
def test_an_item_with_the_size_of_the_batch_by_chance_needs_rows(
    model: type[nn.Module], batch: Any, rows: Sequence[str | int], told: str
):
    way = FORMS["accumulate"]
    with pytest.raises(PassError, match=told):
        check_interpreted(way.case(lambda: TrainingStep(model(), None, SGD, batch), steps=1))
    result = check_interpreted(way.case(lambda: TrainingStep(model(), None, SGD, batch, rows=rows), steps=1))
    assert result.passed, str(result)


def test_a_batch_of_other_rows_keeps_the_items_without_rows():
    x, mask = MASKED
    last, model = (x[:4], mask), Masked()
    expected = model(*last)
    step = sw.parallelize(model, None, SGD, MASKED, cluster="local-4", rows=[0], shapes=[last])
    torch.testing.assert_close(step(last), expected)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([2], r"rows is \[2\]; expected tensors with equal numbers of rows: '0' has 4, '1' has 3"),
        ([0, 1], r"rows is \[0, 1\]; expected tensors with equal numbers of rows"),
        ([], r"rows is \[\]; expected tensors"),
    ],
)
def test_invalid_rows_are_refused(rows: list[int], told: str):
    with pytest.raises(ValueError, match=told):
        TrainingStep(nn.Linear(2, 2), nn.functional.mse_loss, SGD, (torch.ones(4, 2), torch.ones(3, 2)), rows=rows)
