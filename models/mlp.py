"""A multi-layer perceptron on flat inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from ..api.training_step import TrainingStep


class MLP(nn.Module):
    """
    Linear layers of the given widths, with ReLU between them.

    Args:
        widths: numbers of features of the input, of every hidden layer and of the output.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        if len(widths) < 2:
            raise ValueError(f"an MLP needs an input and an output width, got {list(widths)}")
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *hidden, last = self.layers
        for layer in hidden:
            x = F.relu(layer(x))
        return last(x)


def mlp_step(widths: Sequence[int], *, batch: int, seed: int = 0) -> TrainingStep:
    """Return the step of classifying random vectors of ``widths[0]`` features into ``widths[-1]`` classes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(batch, widths[0], generator=generator)
    return TrainingStep(
        model=partial(MLP, tuple(widths)),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=1e-3),
        batch=(inputs, torch.randint(widths[-1], (batch,), generator=generator)),
    )
