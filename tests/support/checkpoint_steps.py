"""Steps whose models use activation checkpointing as users write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import recipe_steps
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardwright.api.training_step import TrainingStep


class Checkpointed(nn.Module):
    """A block that saves only its input for backward."""

    def __init__(self, block: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.block, self.reentrant = block, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


def checkpointed_model(make: Callable[[], nn.Module]) -> nn.Module:
    """Return a model whose blocks `h` are all checkpointed, alternately reentrant and not."""
    model = make()
    blocks = model.h
    assert isinstance(blocks, nn.ModuleList)
    model.h = nn.ModuleList(Checkpointed(block, reentrant=n % 2 == 1) for n, block in enumerate(blocks))
    return model


def gpt2() -> TrainingStep:
    """Next-token prediction in checkpointed blocks, with clipped gradients."""
    step = recipe_steps.gpt2()
    return replace(step, model=partial(checkpointed_model, step.build_model))
