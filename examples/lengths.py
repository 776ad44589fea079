"""
Train on sequences of different lengths, padded to one of a few lengths.

    torchrun --nproc-per-node 2 examples/lengths.py [--steps N] [--cluster FILE]
    python examples/lengths.py --single    # on one device, in plain PyTorch

The step has a program for each padded length. Padding has the label -100, which the loss ignores: the loss is the mean
over the other labels of the global batch, however they are spread over the devices.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import shardwright as sw

LENGTHS, ROWS, WORDS = (8, 16), 8, 64
ADAMW = partial(torch.optim.AdamW, lr=1e-2)


class Tagger(nn.Module):
    """A model from words to a tag for each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, 32, padding_idx=0)
        self.mix, self.tags = nn.Conv1d(32, 64, 3, padding=1), nn.Linear(64, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.tags(F.gelu(self.mix(self.words(words).mT)).mT)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the labels that are not -100."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def padded(rows: list[torch.Tensor], fill: int, length: int) -> torch.Tensor:
    """Return rows in one tensor, padded to a length."""
    given = pad_sequence(rows, batch_first=True, padding_value=fill)
    return F.pad(given, (0, length - given.size(1)), value=fill)


def batch_at(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sentences and tags; the longest sentence decides on the length of the batch."""
    generator = torch.Generator().manual_seed(number)
    longest = LENGTHS[number % len(LENGTHS)]
    sizes = torch.randint(longest // 2, longest + 1, (ROWS,), generator=generator).tolist()
    sentences = [torch.randint(1, WORDS, (size,), generator=generator) for size in sizes]
    length = next(length for length in LENGTHS if max(sizes) <= length)
    return padded(sentences, 0, length), padded([sentence % 4 for sentence in sentences], -100, length)


def train(steps: int, cluster: str = "auto") -> Iterator[float]:
    """Train, and yield the loss of every step."""
    example, *others = (tuple(each.new_ones(ROWS, length) for each in batch_at(0)) for length in LENGTHS)
    step = sw.parallelize(Tagger(), loss_of, ADAMW, example, cluster, shapes=others)
    for number in range(steps):
        yield step(batch_at(number)).item()


def train_single(steps: int) -> Iterator[float]:
    """Do the same in plain PyTorch."""
    model = Tagger()
    optimizer = ADAMW(model.parameters())
    for number in range(steps):
        words, labels = batch_at(number)
        loss = loss_of(model(words), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--single", action="store_true", help="train in plain PyTorch on one CPU")
    options = parser.parse_args()
    losses = train_single(options.steps) if options.single else train(options.steps, options.cluster)
    for number, loss in enumerate(losses):
        if os.environ.get("RANK", "0") == "0":
            print(f"step {number}  loss {loss:.6f}", flush=True)
