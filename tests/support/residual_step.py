"""A step of many equal layers of few operations, for what does not depend on attention."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from shardwright.api.training_step import TrainingStep


class Layer(nn.Module):
    """A feed-forward layer of a transformer, with the norm before it and the sum after it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Residual(nn.Module):
    """Equal layers, and a last layer that classifies."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.h = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.h:
            x = layer(x)
        return self.head(x)


def residual_step(layers: int, *, width: int, batch: int) -> TrainingStep:
    """Return the step of classifying random vectors of `width` features."""
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(batch, width, generator=generator), torch.randint(10, (batch,), generator=generator)
    return TrainingStep(
        partial(Residual, layers, width), F.cross_entropy, partial(torch.optim.AdamW, lr=1e-3), (inputs, labels)
    )
