"""Checks accept right plans and find wrong ones."""

import math
from pathlib import Path

import odd_steps
import pytest
import torch
import torch.nn.functional as F
from split_cluster import split_cluster
from torch import nn

from shardwright.api.checking.cases import CheckCase, CheckResult
from shardwright.api.checking.check import check_interpreted, check_on_ranks, own_error, result_of
from shardwright.api.checking.comparison import Worst
from shardwright.api.training_step import TrainingStep
from shardwright.ir.mesh import Mesh

MESH = Mesh.of(dp=2, tp=2)
CASE = CheckCase("mlp-tiny", MESH, None, torch.float64, "adamw", steps=2, cluster=split_cluster(MESH))


@pytest.mark.parametrize(("features", "width", "ranks"), [(1, 16, 4), (3, 16, 4), (1, 3, 4)])
def test_tensor_parallelism_splits_every_dim_that_can_be_split(features: int, width: int, ranks: int):
    def layers() -> nn.Module:
        return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, features))

    def narrow() -> TrainingStep:
        return TrainingStep(layers, F.mse_loss, torch.optim.SGD, (torch.randn(8, 12), torch.zeros(8, features)))

    result = check_interpreted(CheckCase(narrow, Mesh.of(gpu=ranks), "tp", torch.float64, steps=2))
    assert result.passed, result


def test_a_right_plan_agrees_in_everything():
    result = check_interpreted(CASE)
    assert result.passed, str(result)
    assert {worst.kind for worst in result.errors} == {"loss", "gradient", "parameter", "exp_avg", "exp_avg_sq"}


def test_a_wrong_plan_differs():
    result = check_interpreted(CheckCase(odd_steps.drifting, MESH, "dp", torch.float64, "sgd", steps=2))
    assert not result.passed
    assert "DIFFERS: loss" in str(result)
    assert all(1e-5 < worst.error < 1 for worst in result.errors)


def test_a_loss_that_is_not_finite_is_an_infinite_error():
    def undefined() -> TrainingStep:
        return TrainingStep(
            nn.Linear(4, 3), lambda y, _: (y * math.nan).mean(), torch.optim.SGD, (torch.ones(8, 4), torch.ones(8))
        )

    result = check_interpreted(CheckCase(undefined, Mesh.of(gpu=2), "dp", torch.float64, steps=1))
    assert not result.passed
    assert max(worst.error for worst in result.errors) == math.inf


def test_in_float32_parameters_of_adamw_are_not_compared():
    result = check_interpreted(CheckCase("mlp-tiny", Mesh.of(dp=2), "dp", steps=1))
    assert result.passed, str(result)
    assert {worst.kind for worst in result.errors} == {"loss", "gradient", "exp_avg", "exp_avg_sq"}


def test_a_given_tolerance_is_used():
    assert not check_interpreted(CASE, tolerance=0.0).passed


def test_ranks_find_right_wrong_and_impossible_plans_in_one_launch():
    mesh = Mesh.of(dp=2)
    missing = Path("no", "such", "pins.toml")
    cases = [
        CheckCase("mlp-tiny", mesh, "zero3", torch.float64, "sgd", steps=2),
        CheckCase(odd_steps.drifting, mesh, "dp", torch.float64, "sgd", steps=2),
        CheckCase("mlp-tiny", mesh, missing),
    ]
    right, wrong, impossible = check_on_ranks(cases, 2, timeout=120)
    assert right.passed, str(right)
    assert not wrong.passed
    assert wrong.errors
    assert not impossible.passed
    assert f"{missing}: cannot read the pin file" in impossible.message


def test_a_case_for_another_number_of_ranks_is_refused():
    with pytest.raises(ValueError, match="its mesh has 4 devices, expected 2"):
        check_on_ranks([CASE], 2)


@pytest.mark.parametrize("error", [math.inf, 1e-9])
def test_a_result_is_as_good_as_its_largest_error(error: float):
    errors = (Worst("loss", 0.0, "loss", 1), Worst("gradient", error, "w", 1))
    assert not CheckResult(CASE, errors, tolerance=1e-10).passed
    assert CheckResult(CASE, errors[:1], tolerance=1e-10).passed


@pytest.mark.parametrize(("error", "passed"), [(1.1e-5, True), (1e-3, False)])
def test_float32_errors_up_to_rounding_on_one_device_are_allowed(error: float, passed: bool):
    # Gradients of rounding errors alone make full steps of Adam, on one device too: 1e-5 in its next gradients.
    case = CheckCase("vit-tiny", MESH, steps=4)
    found = result_of(case, {"gradient": Worst("gradient", error, "layers.0.attn.q.weight", 3)}, None)
    assert 1e-6 < found.own["gradient"] < 1e-4
    assert found.passed is passed


def test_random_numbers_do_not_depend_on_rounding():
    def dropping() -> TrainingStep:
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        return TrainingStep(model, F.mse_loss, torch.optim.SGD, (torch.randn(8, 4), torch.randn(8, 2)))

    assert 0.0 < own_error(CheckCase(dropping, MESH, steps=1), seed=0)["gradient"] < 1e-5
