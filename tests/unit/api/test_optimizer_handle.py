"""The handle that schedulers use as an optimizer sets the learning rates of steps, and nothing else."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from shardwright.api.optimizer_handle import OptimizerHandle
from shardwright.runtime.plan import PlanError

SETTINGS = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "warm-up, then cosine": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(optimizer, 10)],
        milestones=[3],
    ),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "steps": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=12, cycle_momentum=False),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_scheduler_sets_the_same_rates_as_for_an_optimizer(make: Callable[[torch.optim.Optimizer], Any]):
    plain = torch.optim.SGD([torch.zeros((), requires_grad=True)], lr=0.1, momentum=0.9)
    handle = OptimizerHandle([SETTINGS])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs, ours = make(plain), make(handle)
        for _ in range(8):
            plain.step()
            handle.stepped()
            assert handle.rates == [pytest.approx(plain.param_groups[0]["lr"], rel=1e-12)]
            theirs.step()
            ours.step()


def test_changes_of_settings_in_the_program_are_refused():
    handle = OptimizerHandle([SETTINGS])
    handle.param_groups[0]["momentum"] = 0.5
    with pytest.raises(PlanError, match=r"momentum of group 0 .* was set to 0\.5, but .* built with 0\.9"):
        _ = handle.rates


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda handle: handle.step(), r"step\(batch\) updates the parameters itself"),
        (lambda handle: handle.state_dict(), "step.optimizer has no state"),
        (lambda handle: handle.load_state_dict({}), "step.optimizer has no state"),
        (lambda handle: handle.add_param_group({"params": []}), "cannot get another parameter group"),
    ],
)
def test_unsupported_methods_are_refused(use: Callable[[OptimizerHandle], Any], message: str):
    with pytest.raises(PlanError, match=message):
        use(OptimizerHandle([SETTINGS]))


def test_every_group_has_its_own_rate():
    handle = OptimizerHandle([{**SETTINGS, "lr": 0.1}, {**SETTINGS, "lr": 0.2}])
    scheduler = lr_scheduler.LambdaLR(handle, [lambda step: 0.5**step, lambda step: 1.0])
    assert handle.rates == [0.1, 0.2]
    handle.stepped()
    scheduler.step()
    assert handle.rates == [0.05, 0.2]
