"""Invalid training steps, to test the code that checks them."""

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
    """Return a step whose loss changes with every call, and so differs between one device and its plan."""
    return replace(training_step("mlp-tiny"), loss=_drifting_loss)


def _drifting_loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, labels) * (1.0 + 1e-3 * next(_CALLS))


class DataDependent(nn.Module):
    """A model with a branch that depends on the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum().item() > 0 else -self.layer(x)


def data_dependent() -> TrainingStep:
    """Return a step that cannot be captured."""
    batch = (torch.ones(8, 4), torch.zeros(8, dtype=torch.long))
    return TrainingStep(DataDependent, F.cross_entropy, torch.optim.SGD, batch)


def no_step() -> int:
    """Return something that is not a step."""
    return 3


def broken() -> TrainingStep:
    """Raise an error."""
    raise ZeroDivisionError("one over nothing")


def larger_gpt2() -> TrainingStep:
    """Return a small GPT-2 with a batch that several axes can divide."""
    config = GPT2Config(layers=2, width=16, heads=2, vocabulary=60, positions=8)
    return gpt2_step(config, batch=32, length=8)


def one_layer_gpt2() -> TrainingStep:
    """Return a small GPT-2 of one layer, for tests in which equal layers do not matter."""
    config = GPT2Config(layers=1, width=32, heads=4, vocabulary=101, positions=24)
    return gpt2_step(config, batch=8, length=16)
