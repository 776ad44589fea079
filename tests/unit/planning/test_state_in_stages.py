"""Pipelines with buffers, batch norms and chunks train as one device does."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from launches import names_of
from split_cluster import split_cluster
from staged_modules import MODELS, ON_RANKS, batch
from torch import nn
from torch.nn import functional

from shardwright.api.checking.interpreted import InterpretedRun
from shardwright.api.compile import CompiledStep, PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.mesh import Mesh


@pytest.mark.parametrize("name", names_of(MODELS, lambda name: name not in ON_RANKS))
def test_what_is_kept_in_stages_is_that_of_one_device(name: str):
    model = MODELS[name]().double()
    assert_trains_alike(model, planned(model, stages=2))


def planned(model: nn.Module, **options: int) -> CompiledStep:
    optimizer = partial(torch.optim.SGD, lr=0.1)
    step = TrainingStep(deepcopy(model), functional.mse_loss, optimizer, batch(0))
    made = compile_step(step, split_cluster(Mesh.of(gpu=2)), PlanOptions(**options))  # pyright: ignore[reportArgumentType]
    assert not [each for each in made.report["candidates"] if "fault" in each["why"]]
    return made


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
