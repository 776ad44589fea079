"""
Any strategy computes the same step: every op of a model gets a random signature.

This checks signatures together, resharding between any two of them, and the passes that lower resharding to
collectives. `python benchmarks/zoo.py --strategies 200` runs two hundred strategies.
"""

from functools import partial
from itertools import product

import pytest
import torch
from launches import names_of
from random_strategies import RandomStrategies, with_random_signatures
from torch import nn
from xdsl.context import Context

from shardwright.api.checking.cases import TOLERANCES, CheckCase
from shardwright.api.checking.check import check_interpreted
from shardwright.api.training_step import TrainingStep
from shardwright.ir.mesh import parse_mesh
from shardwright.lowering.interpreter.interpreter import find_function, interpret
from shardwright.lowering.interpreter.random_inputs import random_inputs
from shardwright.lowering.interpreter.verify_numerics import check_pass
from shardwright.passes.pipeline import run_pipeline


@pytest.mark.parametrize("mesh", ["2x2", "x=3"])
def test_every_pass_keeps_the_results_of_random_signatures(mesh: str):
    spatial = parse_mesh(mesh)
    given = RandomStrategies("mlp-tiny", spatial).module
    for seed in range(5):
        module = with_random_signatures(given, spatial, seed)
        check_pass(given, module, "random signatures")
        run_pipeline(Context(), module, "program,finish")
        check_pass(given, module, "program,finish")
        inputs = random_inputs(find_function(module))
        interpret(module, inputs, check_replicas=True, explicit=True)


class Largest(nn.Module):
    """A model with its own loss that compares sums over features with their maximum, as the gradient of `amax` does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(24, 16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        largest = h.amax(-1, keepdim=True)
        return self.last(torch.where(3.0 * h == 3.0 * largest, h.exp(), h - largest)).square().mean()


def largest_step() -> TrainingStep:
    """Return a step of eight rows."""
    return TrainingStep(Largest, None, partial(torch.optim.SGD, lr=0.1), (torch.randn(8, 24),))


def test_compared_values_come_from_the_same_sum():
    strategies = RandomStrategies(largest_step, parse_mesh("x=4"))
    worst = max((strategies.error(seed) for seed in range(24)), key=lambda each: each.error)
    assert worst.error <= TOLERANCES[strategies.case.dtype], worst


class NormedInput(nn.Module):
    """A model with its own loss that applies batch norm to its input, which has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(x)).square().mean()


def normed_input_step() -> TrainingStep:
    """Return a step of eight images."""
    return TrainingStep(NormedInput, None, partial(torch.optim.SGD, lr=0.1), (torch.randn(8, 4, 4, 4),))


def test_a_batch_norm_of_the_input_is_split_in_every_way():
    strategies = RandomStrategies(normed_input_step, parse_mesh("x=4"))
    worst = max((strategies.error(seed) for seed in range(12)), key=lambda each: each.error)
    assert worst.error <= TOLERANCES[strategies.case.dtype], worst


def test_a_batch_norm_in_bfloat16_is_interpreted():
    case = CheckCase(normed_input_step, parse_mesh("x=4"), dtype=torch.bfloat16, pins="dp", steps=2)
    result = check_interpreted(case, tolerance=5e-2)
    assert result.passed, result


MESHES = {
    "gpt2-tiny": "2x2",
    "bert-sgmoe-tiny": "2x2",
    "vit-switch-tiny": "x=3",
    "vgg19-tiny": "x=4",
    "mixtral-tiny": "x=3",
}


ALWAYS = ("bert-sgmoe-tiny", "vgg19-tiny", "mixtral-tiny")
"""Models that run without `--thorough`: attention, convolutions, and experts of both kinds, each on another mesh."""


@pytest.mark.parametrize(
    ("name", "seed"), names_of(product(MESHES, range(3)), lambda each: each[0] in ALWAYS and each[1] == 0)
)
def test_random_signatures_train_as_one_device_does(name: str, seed: int):
    strategies = RandomStrategies(name, parse_mesh(MESHES[name]))
    worst = strategies.error(seed)
    assert worst.error <= TOLERANCES[strategies.case.dtype], worst
