"""The loss of a step: a number, whose `backward()` is an error that says backward has been done."""

from __future__ import annotations

import warnings
from typing import NoReturn

import torch

from ..ir.not_supported import BACKWARD
from ..runtime.plan import PlanError


def trained_loss(loss: torch.Tensor) -> torch.Tensor:
    """The same number as a part of a graph, as an eager loss is, in which no gradient can be asked for."""
    with torch.enable_grad():
        return _Trained.apply(loss.detach().requires_grad_())  # pyright: ignore[reportReturnType]


def warn_on_one_rank(rank: int) -> None:
    """Leave it to rank 0 to warn that a loss is converted to a number, as eager PyTorch does."""
    if rank:
        warnings.filterwarnings("ignore", "Converting a tensor with requires_grad=True to a scalar", UserWarning)


class _Trained(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> NoReturn:
        raise PlanError(f"backward() of the loss of a step was called; {BACKWARD.instead}")
