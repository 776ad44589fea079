"""
Train a GAN: the generator and the discriminator in one step.

    torchrun --nproc-per-node 2 examples/gan.py [--steps N] [--cluster FILE]
    python examples/gan.py --single    # on one device, in plain PyTorch, with two optimizers

Two steps cannot share a module, so one module returns both losses, and each part has a group of parameters. Both parts
are updated together: the generator's gradients come from the discriminator before its update, not after it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import shardwright as sw


class Adversaries(nn.Module):
    """A generator of points and a discriminator, with the losses of both."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, real: torch.Tensor, noise: torch.Tensor) -> dict[str, torch.Tensor]:
        fake = self.generator(noise)
        # Detached weights: the generator's loss has no gradient for the discriminator.
        frozen = {name: weight.detach() for name, weight in self.discriminator.named_parameters()}
        fooled = functional_call(self.discriminator, frozen, (fake,))
        # -log(sigmoid(x)) is softplus(-x).
        told = F.softplus(-self.discriminator(real)) + F.softplus(self.discriminator(fake.detach()))
        return {"generator_loss": F.softplus(-fooled).mean(), "discriminator_loss": told.mean()}


def make_optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Return Adam with a learning rate for each part."""
    named = list(named_parameters)
    made, judged = ([p for name, p in named if name.startswith(part)] for part in ("generator", "discriminator"))
    groups = [{"params": made, "lr": 1e-3}, {"params": judged, "lr": 4e-3}]
    return torch.optim.Adam(groups, betas=(0.5, 0.999))


def batch_at(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return real points, on a circle, and noise."""
    generator = torch.Generator().manual_seed(number)
    angle = 6.2832 * torch.rand(32, generator=generator)
    return torch.stack([angle.cos(), angle.sin()], 1), torch.randn(32, 8, generator=generator)


def both_losses(losses: dict[str, torch.Tensor], batch: object) -> dict[str, torch.Tensor]:
    """Return the metrics of a step: each loss by its name."""
    return losses


def train(steps: int, cluster: str = "auto") -> Iterator[float]:
    """Train, and yield the sum of both losses of every step; `step.metrics` has each of them."""
    torch.manual_seed(0)
    step = sw.parallelize(
        Adversaries(), None, make_optimizer, batch_at(0), cluster, metrics=lambda losses, batch: losses
    )
    for number in range(steps):
        yield step(batch_at(number)).item()


def train_single(steps: int) -> Iterator[float]:
    """Do the same in plain PyTorch, with an optimizer for each part."""
    torch.manual_seed(0)
    pair = Adversaries()
    updates = [
        torch.optim.Adam(part.parameters(), lr, betas=(0.5, 0.999))
        for part, lr in ((pair.generator, 1e-3), (pair.discriminator, 4e-3))
    ]
    for number in range(steps):
        losses = pair(*batch_at(number))
        for loss in losses.values():
            loss.backward()
        for optimizer in updates:
            optimizer.step()
            optimizer.zero_grad()
        yield sum(loss.item() for loss in losses.values())


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
