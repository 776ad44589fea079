"""`step.loader`: the options of a DataLoader are mapped or refused by name."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
import torch
from split_cluster import split_cluster
from torch import nn
from torch.utils.data import RandomSampler, TensorDataset

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep
from shardwright.ir.mesh import Mesh
from shardwright.runtime.plan import PlanError

DATA = TensorDataset(torch.arange(12.0).reshape(12, 1), torch.zeros(12, 1))
SGD = partial(torch.optim.SGD, lr=0.0)
ONE = split_cluster(Mesh.of(gpu=1))


@pytest.fixture(scope="module")
def step() -> DistributedStep:
    return sw.parallelize(nn.Linear(1, 1), nn.functional.mse_loss, SGD, DATA[:4], ONE)


def order(step: DistributedStep, **options: Any) -> list[int]:
    return [int(row) for batch in step.loader(DATA, **options) for row in batch.batch["0"].flatten()]


def test_rows_are_shuffled_or_not_as_asked(step: DistributedStep):
    in_order = list(range(12))
    for options in ({"shuffle": False}, {"seed": None}, {"seed": None, "shuffle": False}, {"shuffle": None}):
        assert (order(step, **options) == in_order) == (options != {"shuffle": None}), options
    assert order(step, shuffle=True, seed=3) == order(step, seed=3) != in_order
    assert order(step, batch_size=4, num_workers=0, pin_memory=False) == order(step)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": False, "seed": 3}, "shuffle=False and seed=3: seed=None leaves samples in order"),
        ({"shuffle": True, "seed": None}, "shuffle=True and seed=None"),
        ({"seed": 1.5}, "seed=1.5, expected a whole number, or None"),
        ({"batch_size": 2}, "batch_size=2, but the step is planned for batches of 4 rows on all ranks together"),
        ({"batch_size": None}, "batch_size=None, but the step is planned for batches of 4 rows"),
        (
            {"sampler": RandomSampler(DATA)},
            "was given sampler=, but it decides itself which rows a rank loads: give it seed=",
        ),
        ({"batch_sampler": [[0, 1]]}, "was given batch_sampler=, .* step.sampler"),
        ({"generator": torch.Generator()}, "was given generator=, but it decides"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(step: DistributedStep, options: dict[str, Any], message: str):
    with pytest.raises(PlanError, match=message):
        step.loader(DATA, **options)


def test_a_memory_format_that_is_not_kept_causes_a_warning(caplog: pytest.LogCaptureFixture):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=torch.channels_last)  # pyright: ignore
    batch = torch.randn(4, 3, 4, 4), torch.zeros(4, 2)
    with caplog.at_level(logging.WARNING, "shardwright"):
        sw.parallelize(model, nn.functional.mse_loss, SGD, batch, ONE)
    assert "parameter '0.weight' is in channels_last, and the step holds it contiguous" in caplog.text
