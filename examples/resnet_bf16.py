"""
Train a ResNet in mixed precision: computed in bfloat16, with parameters and updates in float32.

    torchrun --nproc-per-node 2 examples/resnet_bf16.py [--steps N] [--cluster FILE]
    python examples/resnet_bf16.py --single    # on one device, in plain PyTorch

Batch norms use the statistics of the global batch, so the model needs no `SyncBatchNorm`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

import shardwright as sw
from shardwright.models.resnet import ResNet, ResNetConfig

# ResNetConfig() is ResNet-50.
CONFIG = ResNetConfig(blocks=(1, 1), width=8, image=32, classes=10)
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-4)


def network() -> nn.Module:
    """Return the model."""
    torch.manual_seed(0)
    return ResNet(CONFIG)


def batch_at(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images and labels; in your script, a batch of `step.loader(dataset)`."""
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(16, CONFIG.channels, CONFIG.image, CONFIG.image, generator=generator)
    return images, torch.randint(CONFIG.classes, (16,), generator=generator)


def train(steps: int, cluster: str = "auto") -> Iterator[float]:
    """Train, and yield the loss of every step."""
    step = sw.parallelize(network(), nn.functional.cross_entropy, SGD, batch_at(0), cluster, precision="bf16-mixed")
    for number in range(steps):
        yield step(batch_at(number)).item()


def train_single(steps: int) -> Iterator[float]:
    """Do the same in plain PyTorch."""
    model = network()
    optimizer = SGD(model.parameters())
    for number in range(steps):
        images, labels = batch_at(number)
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
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
