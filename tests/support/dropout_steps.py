"""Shipped transformers with the dropout of their papers, and a model that draws every kind of random number."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from shardwright.api.training_step import TrainingStep
from shardwright.models.bert import BertConfig, bert_step
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.vit import ViTConfig, vit_step

_TEXT = {"layers": 2, "width": 32, "heads": 4, "vocabulary": 101, "positions": 24, "dropout": 0.1}


def gpt2() -> TrainingStep:
    """A tiny GPT-2."""
    return gpt2_step(GPT2Config(**_TEXT), batch=8, length=16)


def bert() -> TrainingStep:
    """A tiny BERT."""
    return bert_step(BertConfig(**_TEXT), batch=8, length=16)


def vit() -> TrainingStep:
    """A tiny ViT."""
    config = ViTConfig(layers=2, width=32, heads=4, image=32, patch=8, classes=10, dropout=0.1)
    return vit_step(config, batch=8)


class Noisy(nn.Module):
    """Rows ``[batch, 12]`` to scores ``[batch, 4]``, through every op that draws random numbers by position."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(12, 10)
        self.down = nn.Linear(10, 4)
        self.alpha, self.whole_rows = nn.AlphaDropout(0.2), nn.Dropout1d(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.whole_rows(self.alpha(self.up(x)).unsqueeze(-1)).squeeze(-1)
        torch.rand(3)  # The result is unused, but the call consumes a stream.
        h = h * torch.rand_like(h) + torch.randn_like(h) + torch.randint_like(h, 3)
        h = h + torch.rand(h.size(0), 1) * torch.randn(10) + torch.normal(0.5, 2.0, (10,))
        h = h * torch.bernoulli(h.detach().sigmoid()) + torch.empty_like(h).uniform_(-1, 1)
        return F.gumbel_softmax(self.down(h) + torch.randint(1, 4, (h.size(0), 1)))


def noisy() -> TrainingStep:
    """Return a step of `Noisy` with the mean square error."""
    generator = torch.Generator().manual_seed(0)
    batch = (torch.randn(8, 12, generator=generator), torch.randn(8, 4, generator=generator))
    return TrainingStep(Noisy, F.mse_loss, partial(torch.optim.SGD, lr=0.1), batch)
