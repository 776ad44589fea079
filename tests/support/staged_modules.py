"""Modules whose buffers, batch norms and layers are divided among the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial

import torch
from split_cluster import split_cluster
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

import shardwright as sw
from shardwright.ir.mesh import Mesh

WIDTH, ROWS = 8, 8
SGD = partial(torch.optim.SGD, lr=0.1)


class Blocks(nn.Module):
    """Four layers, with optional operations before and after them."""

    kept: torch.Tensor

    def __init__(self, before: nn.Module | None = None, make: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = before
        self.layers = nn.ModuleList(make() if make is not None else block() for _ in range(4))
        self.register_buffer("kept", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.begin(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.end(x)

    def begin(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.before is None else self.before(x)

    def end(self, x: torch.Tensor) -> torch.Tensor:
        return x


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))


class FromBatch(Blocks):
    """A buffer that nothing reads, written from the batch alone."""

    def begin(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.copy_(x[-1])
        return x


class FromConstants(Blocks):
    """A buffer that is written from constants alone."""

    def begin(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.copy_(torch.arange(WIDTH))
        return x


class UsedAndWrittenAgain(Blocks):
    """A buffer that the first stage uses and the last one writes."""

    def begin(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.mul_(0.5)
        return x + self.kept

    def end(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.add_(1)
        return x * self.kept


class WrittenLast(Blocks):
    """A buffer that nothing reads, written from the output of the last layer."""

    def end(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.copy_(x.detach().mean(0))
        return x


def normed() -> nn.Module:
    return nn.Sequential(spectral_norm(nn.Linear(WIDTH, 16)), nn.GELU(), nn.Linear(16, WIDTH))


def frozen_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16).eval(), nn.GELU(), nn.Linear(16, WIDTH))


MODELS: dict[str, Callable[[], Blocks]] = {
    "batch": FromBatch,
    "constants": FromConstants,
    "used and written again": UsedAndWrittenAgain,
    "written last": WrittenLast,
    "spectral norm": partial(Blocks, make=normed),
    "batch norm in front": lambda: Blocks(nn.BatchNorm1d(WIDTH)),
    "batch norm in eval mode": partial(Blocks, make=frozen_norm),
}

ON_RANKS = ("used and written again", "batch norm in front", "batch norm in eval mode")
"""Models that always train on ranks; the others always run in the interpreter."""


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(number)
    return tuple(torch.randn(ROWS, WIDTH, generator=draw, dtype=torch.float64) for _ in range(2))  # pyright: ignore


def furthest_of(name: str) -> float:
    """Return the largest difference of losses and state from one device."""
    model = MODELS[name]().double()
    alone, worst = deepcopy(model), 0.0
    optimizer = SGD(alone.parameters())
    plan = sw.PlanOptions(stages=2)
    step = sw.parallelize(model, functional.mse_loss, SGD, batch(0), split_cluster(Mesh.of(gpu=2)), plan=plan)
    for number in range(3):
        x, y = batch(number)
        loss = functional.mse_loss(alone(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worst = max(worst, abs(float(step((x, y)) - loss)))
    state = step.state_dict()
    return max(worst, *(float((state[key] - value).abs().max()) for key, value in alone.state_dict().items()))


def furthest(names: Sequence[str]) -> list[float]:
    """Return the largest difference of this rank from one device, for each model."""
    return [furthest_of(name) for name in names]
