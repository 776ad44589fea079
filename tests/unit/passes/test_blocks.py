"""Layers of models with nested lists of blocks."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shardwright.api.compile import import_training_step
from shardwright.api.training_step import TrainingStep
from shardwright.dialects.step import BACKWARD
from shardwright.dialects.train import PARAM
from shardwright.ir.mesh import Mesh
from shardwright.models import training_step
from shardwright.passes.step.layers import find_layers
from shardwright.passes.step.step_view import StepView, step_functions


class Residual(nn.Module):
    """A residual block: x + net(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.net(x)


class InTurn(nn.Module):
    """Blocks in sequence."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Beside(nn.Module):
    """The sum of several blocks with the same input, as experts are."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Residual() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([expert(x) for expert in self.experts]).sum(0)


class Stages(nn.Module):
    """A sequence of stages in a list."""

    def __init__(self, *stages: nn.Module) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


def layers(step: TrainingStep) -> tuple[str, ...]:
    (func,) = step_functions(import_training_step(step))
    return find_layers(StepView(func, Mesh(()))).names


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ((InTurn(2), InTurn(1)), ("stages.0.blocks.0", "stages.0.blocks.1", "stages.1.blocks.0")),
        ((InTurn(2), InTurn(2)), ("stages.0", "stages.1")),
        ((InTurn(2), nn.Linear(4, 4)), ("stages.0.blocks.0", "stages.0.blocks.1", "stages.1")),
        ((Beside(2), nn.Linear(4, 4)), ("stages.0", "stages.1")),
        (
            (Stages(InTurn(2), InTurn(1)),),
            ("stages.0.stages.0.blocks.0", "stages.0.stages.0.blocks.1", "stages.0.stages.1.blocks.0"),
        ),
    ],
    ids=["unequal", "equal", "a head", "beside one another", "three deep"],
)
def test_blocks_of_inner_lists_are_layers_if_the_outer_ones_differ(
    stages: tuple[nn.Module, ...], expected: tuple[str, ...]
):
    batch = torch.randn(4, 4), torch.randn(4, 4)
    step = TrainingStep(Stages(*stages), F.mse_loss, partial(torch.optim.SGD, lr=0.1), batch)
    assert layers(step) == expected


def test_blocks_of_stages_with_different_depths_are_layers():
    names = layers(training_step("transgan-tiny"))
    assert {"stages.0.blocks.0", "stages.0.blocks.1", "stages.2.blocks.0"} < {*names}


def test_ops_after_the_blocks_of_a_module_leave_backward_in_the_blocks():
    module = import_training_step(training_step("transgan-tiny"))
    (func,) = step_functions(module)
    view = StepView(func, Mesh.of(gpu=1))
    found = find_layers(view)
    homes = {given.name: found.homes.get(given.argument) for given in view.inputs if given.role == PARAM}
    blocks = [name for name in found.names if ".blocks." in name]
    assert len(blocks) == 3
    for block in blocks:
        number = found.names.index(block)
        backward = [op for op, layer in found.of.items() if layer == number and BACKWARD in op.attributes]
        assert any(op.name == "aten.attention_backward" for op in backward)
        assert homes[f"{block}.mlp.down.weight"] == number
