"""Buffers, batch norms and chunks in pipelines: what is planned in stages trains as one device does."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import pytest
import torch
from split_cluster import split_cluster
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from shardwright.api.checking.interpreted import InterpretedRun
from shardwright.api.compile import CompiledStep, PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.mesh import Mesh

WIDTH, ROWS = 8, 8


class Blocks(nn.Module):
    """Four layers, with more before and after them."""

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
    """A buffer that nothing reads, written from what the last layer makes."""

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


@pytest.mark.parametrize("name", MODELS)
def test_what_is_kept_in_stages_is_that_of_one_device(name: str):
    model = MODELS[name]().double()
    assert_trains_alike(model, planned(model, stages=2))


def planned(model: nn.Module, **options: int) -> CompiledStep:
    optimizer = partial(torch.optim.SGD, lr=0.1)
    step = TrainingStep(deepcopy(model), functional.mse_loss, optimizer, batch(0))
    made = compile_step(step, split_cluster(Mesh.of(gpu=2)), PlanOptions(**options))  # pyright: ignore[reportArgumentType]
    assert not [each for each in made.report["candidates"] if "fault" in each["why"]]
    return made


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(number)
    return tuple(torch.randn(ROWS, WIDTH, generator=draw, dtype=torch.float64) for _ in range(2))  # pyright: ignore


def assert_trains_alike(model: nn.Module, plan: CompiledStep) -> None:
    run = InterpretedRun(plan.module, deepcopy(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        x, y = batch(number)
        loss = functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found = run.step((x, y))
        expected = {("parameter", key): value for key, value in model.named_parameters()}
        expected |= {("buffer", key): value for key, value in model.named_buffers()}
        for key, value in {("loss", "loss"): loss, **expected}.items():
            torch.testing.assert_close(found[key], value.detach(), rtol=1e-9, atol=1e-12, msg=f"{key}")
