"""Complex items of a batch, and complex weights under fused and captured updates, train as in eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from split_cluster import split_cluster
from torch import nn

import shardwright as sw
from shardwright.api.checking.comparison import measure
from shardwright.api.checking.interpreted import InterpretedRun
from shardwright.api.checking.reference import EagerRun
from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.mesh import Mesh
from shardwright.lowering.capture.capture import CaptureError

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": partial(torch.optim.Adam, lr=0.01, weight_decay=0.1),
    "amsgrad": partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),
}


class Complex(nn.Module):
    """A model with complex inputs and complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, dtype=torch.complex128)

    def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.layer(z).abs(), y)


BATCH: Any = (torch.randn(8, 4, dtype=torch.complex128), torch.randn(8, 4, dtype=torch.float64))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_complex_numbers_train_as_in_eager_pytorch(optimizer: Callable[..., torch.optim.Optimizer]):
    model = Complex()
    given = TrainingStep(model, None, optimizer, BATCH)
    mesh = Mesh.of(gpu=2)
    plan = compile_step(given, split_cluster(mesh), PlanOptions(pins="dp", gradients=True))
    reference, run = EagerRun(given, None, 0), InterpretedRun(plan.module, model)
    step = sw.parallelize(copy.deepcopy(model), None, optimizer, BATCH, cluster="local-4")
    for number in range(3):
        expected = reference.step(BATCH)
        found = measure(run.step(BATCH), expected, number)
        assert max(worst.error for worst in found.values()) < 1e-12, found
        torch.testing.assert_close(step(BATCH), expected["loss", "loss"])
    for name, value in reference.model.state_dict().items():
        torch.testing.assert_close(step.state_dict()[name], value)


def test_clipping_complex_gradients_is_refused_by_name():
    given = TrainingStep(Complex(), None, OPTIMIZERS["sgd"], BATCH, clip_norm=1.0)
    with pytest.raises(CaptureError, match=r"parameter 'layer\.weight' is complex.*view_as_complex"):
        compile_step(given, split_cluster(Mesh.of(gpu=2)), PlanOptions(pins="dp"))
