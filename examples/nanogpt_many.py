"""
Train a byte-level GPT on many devices.

    torchrun --nproc-per-node 2 examples/nanogpt_many.py [--steps N] [--cluster FILE]

`nanogpt_one.py` is the same script for one device.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import shardwright as sw

LAYERS, WIDTH, HEADS, LENGTH, BATCH = 2, 64, 4, 32, 16


class Block(nn.Module):
    """A block of causal attention and an MLP, each after a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm_2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """A language model over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(LENGTH, device=tokens.device))
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def batch_at(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step: random windows of a source file of Python, and the next byte of each position."""
    text = torch.tensor(list((Path(sysconfig.get_paths()["stdlib"]) / "argparse.py").read_bytes()))
    starts = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=torch.Generator().manual_seed(number))
    rows = text[starts + torch.arange(LENGTH + 1)]
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the next byte."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    """Return AdamW with weight decay of matrices only."""
    matrices, vectors = [], []
    for parameter in parameters:
        (matrices if parameter.dim() > 1 else vectors).append(parameter)
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors}], 1e-3, weight_decay=0.0)


def train(steps: int, cluster: str) -> Iterator[float]:
    """Train, and yield the loss of every step."""
    torch.manual_seed(0)
    step = sw.parallelize(GPT(), loss_of, make_optimizer, batch_at(0), cluster, clip_norm=1.0)
    assert step.optimizer is not None
    schedule = CosineAnnealingLR(step.optimizer, steps)
    for number in range(steps):
        loss = step(batch_at(number))
        schedule.step()
        yield loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--cluster", default="auto")
    options = parser.parse_args()
    for number, loss in enumerate(train(options.steps, options.cluster)):
        if os.environ.get("RANK", "0") == "0":
            print(f"step {number}  loss {loss:.6f}", flush=True)
