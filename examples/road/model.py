"""The training step in `step.mlir`, which is the output of `shardwright import model:step -o step.mlir`."""

import torch
from torch import nn

import shardwright as sw


def step() -> sw.TrainingStep:
    """Return the step of a classifier with two layers."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
    batch = (torch.randn(32, 16), torch.randint(10, (32,)))
    return sw.TrainingStep(
        model, nn.functional.cross_entropy, lambda parameters: torch.optim.SGD(parameters, lr=0.1), batch
    )
