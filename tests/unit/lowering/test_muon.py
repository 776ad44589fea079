"""
`torch.optim.Muon` is exact up to the rounding of its iteration in bfloat16.

Its Newton-Schulz iteration casts each gradient to bfloat16. With that cast to float64 a step on two ranks differs from
eager PyTorch by no more than the rounding of float64.
"""

from __future__ import annotations

import pytest
import torch
from split_cluster import split_cluster
from torch import nn

from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.check import check_interpreted
from shardwright.api.training_step import TrainingStep
from shardwright.ir.mesh import Mesh


def step() -> TrainingStep:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12, bias=False), nn.GELU(), nn.Linear(12, 4, bias=False))
    batch = torch.randn(8, 8), torch.randn(8, 4)
    return TrainingStep(model, nn.functional.mse_loss, torch.optim.Muon, batch)


@pytest.mark.parametrize(("in_float64", "low", "high"), [(True, 0.0, 1e-13), (False, 1e-12, 1e-2)])
def test_a_step_differs_by_the_rounding_of_its_iteration(
    monkeypatch: pytest.MonkeyPatch, in_float64: bool, low: float, high: float
):
    if in_float64:
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
    mesh = Mesh.of(gpu=2)
    case = CheckCase(step, mesh, None, torch.float64, None, 3, split_cluster(mesh))
    worst = {each.kind: each.error for each in check_interpreted(case, tolerance=1.0).errors}
    assert low <= worst["parameter"] <= high, worst
