"""The loss of a planned step: a number whose `backward()` raises an error, because backward has already run."""

from __future__ import annotations

import warnings
from typing import NoReturn

import torch

from ..ir.not_supported import BACKWARD
from ..runtime.plan import PlanError


def trained_loss(loss: torch.Tensor) -> torch.Tensor:
    """Return the loss as a tensor that requires a gradient, like an eager loss, but raises on `backward()`."""
    with torch.enable_grad():
        return _Trained.apply(loss.detach().requires_grad_())  # pyright: ignore[reportReturnType]


def warn_on_one_rank(rank: int) -> None:
    """Silence, on all ranks but 0, the warning of eager PyTorch that a loss is converted to a number."""
    if rank:
        warnings.filterwarnings("ignore", "Converting a tensor with requires_grad=True to a scalar", UserWarning)


class _Trained(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> NoReturn:
        raise PlanError(f"backward() of the loss of a step was called; {BACKWARD.instead}")
