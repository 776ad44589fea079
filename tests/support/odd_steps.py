"""Training steps that are not what they should be, for tests of what checks them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from shardwright.api.training_step import TrainingStep
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.registry import training_step

_CALLS = itertools.count(1)


def drifting() -> TrainingStep:
    """A step whose loss is another with every call, and so another on one device than in its plan."""
    return replace(training_step("mlp-tiny"), loss=_drifting_loss)


def _drifting_loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, labels) * (1.0 + 1e-3 * next(_CALLS))


class DataDependent(nn.Module):
    """Does one thing or another, by the numbers it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum().item() > 0 else -self.layer(x)


def data_dependent() -> TrainingStep:
    """A step that cannot be captured."""
    batch = (torch.ones(8, 4), torch.zeros(8, dtype=torch.long))
    return TrainingStep(DataDependent, F.cross_entropy, torch.optim.SGD, batch)


def no_step() -> int:
    """Not a step at all."""
    return 3


def broken() -> TrainingStep:
    """A function that fails."""
    raise ZeroDivisionError("one over nothing")


def larger_gpt2() -> TrainingStep:
    """A small GPT-2 on a batch that several axes can divide."""
    config = GPT2Config(layers=2, width=16, heads=2, vocabulary=60, positions=8)
    return gpt2_step(config, batch=32, length=8)
