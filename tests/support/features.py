"""
Training scripts of one feature each, as users write them: each trains as plain PyTorch does, or is refused by name.

The scripts are in the files `feature_*.py`. To move a script from refused to supported, change its decorator and let
it compare; then delete its row from `ir/not_supported.py` if no other script needs it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from plan_keywords import with_plan
from torch import nn

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep
from shardwright.ir.not_supported import Refusal

Batch: TypeAlias = "tuple[Any, ...] | list[Any] | dict[str, Any]"
Script: TypeAlias = "Callable[[], object]"

SGD = partial(torch.optim.SGD, lr=0.1)
cross_entropy = nn.functional.cross_entropy


@dataclass(frozen=True)
class Feature:
    """
    A script, and the expected error if it is refused.

    Args:
        message: a pattern of the error; None if the script works.
        refusal: the row of the manual whose advice ends the error; None if the script is a mistake rather than a
            feature that could be supported.
    """

    script: Script
    message: str | None = None
    refusal: Refusal | None = None


FEATURES: dict[str, Feature] = {}

COMPARED: list[DistributedStep] = []
"""The steps whose weights were compared with plain PyTorch."""


def works(name: str) -> Callable[[Script], Script]:
    """Register a script that compares its training with plain PyTorch."""
    return _registered(name)


def refused(name: str, message: str, refusal: Refusal | None = None) -> Callable[[Script], Script]:
    """Register a script that ends in an error of this package; for the arguments see `Feature`."""
    return _registered(name, message, refusal)


def _registered(name: str, *expected: Any) -> Callable[[Script], Script]:
    def register(script: Script) -> Script:
        assert name not in FEATURES, name
        FEATURES[name] = Feature(script, *expected)
        return script

    return register


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batches(*shape: int, count: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of inputs, by default six rows of four numbers, and one of three labels for each row."""
    shape = shape or (6, 4)
    return [(torch.randn(shape), torch.randint(3, shape[:1])) for _ in range(count)]


def planned(
    model: nn.Module | Callable[[], nn.Module],
    loss: Callable[..., Any] | None = cross_entropy,
    batch: Batch | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = SGD,
    **options: Any,
) -> DistributedStep:
    """Return a step of one rank, planned without a search."""
    example = batches()[0] if batch is None else batch
    return sw.parallelize(model, loss, optimizer, example, "local-4", **with_plan({"pins": "dp", **options}))


def trains_alike(
    model: nn.Module,
    loss: Callable[..., Any] | None = cross_entropy,
    given: Sequence[Batch] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = SGD,
    *,
    in_plain: Callable[[nn.Module, Any], torch.Tensor] | None = None,
    drawing: Callable[..., Any] = nullcontext,
    tolerance: float = 1e-5,
    **options: Any,
) -> DistributedStep:
    """
    Train a copy of a module in plain PyTorch, and the module by a step, and compare losses and weights.

    Args:
        given: the batches; the first is the example.
        in_plain: function from a module and a batch to the loss; by default ``loss(model(*inputs), labels)``, or
            ``model(*batch)`` without a loss.
        drawing: function from the number of a step to the context of its forward pass in plain PyTorch.

    Returns:
        The step.
    """
    given = batches() if given is None else given
    plain = copy.deepcopy(model)
    expected = train_plainly(plain, given, loss, optimizer, in_plain=in_plain, drawing=drawing)
    step = planned(model, loss, given[0], optimizer, **options)
    losses = [step(batch).detach() for batch in given]
    torch.testing.assert_close(losses, expected, rtol=tolerance, atol=tolerance)
    assert_same_weights(step, plain, tolerance)
    return step


def train_plainly(
    plain: nn.Module,
    given: Sequence[Batch],
    loss: Callable[..., Any] | None = cross_entropy,
    optimizer: Callable[..., torch.optim.Optimizer] = SGD,
    *,
    in_plain: Callable[[nn.Module, Any], torch.Tensor] | None = None,
    drawing: Callable[..., Any] = nullcontext,
) -> list[torch.Tensor]:
    """Train a module in plain PyTorch and return the losses; for the arguments see `trains_alike`."""
    of_batch, updates, losses = in_plain or partial(_loss, loss), optimizer(plain.parameters()), list[torch.Tensor]()
    for number, batch in enumerate(given):
        with drawing() if drawing is nullcontext else drawing(step=number):
            value = of_batch(plain, batch)
        value.backward()
        updates.step()
        updates.zero_grad()
        losses.append(value.detach())
    return losses


def assert_follows(step: DistributedStep, plain: nn.Module, given: Sequence[Batch]) -> None:
    """Train a step, and a module in plain PyTorch, on the same batches; compare losses and weights."""
    expected = train_plainly(plain, given)
    torch.testing.assert_close([step(batch).detach() for batch in given], expected, rtol=1e-5, atol=1e-5)
    assert_same_weights(step, plain)


def assert_same_weights(
    step: DistributedStep, plain: nn.Module, tolerance: float = 1e-5, *, equal_nan: bool = False
) -> None:
    COMPARED.append(step)
    options: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "check_stride": False, "equal_nan": equal_nan}
    torch.testing.assert_close(step.state_dict(), {**plain.state_dict()}, **options)


def _loss(loss: Callable[..., Any] | None, model: nn.Module, batch: Any) -> torch.Tensor:
    return model(*batch) if loss is None else loss(model(*batch[:-1]), batch[-1])
