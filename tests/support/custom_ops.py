"""Ops that no table knows, as a user's library would define them, and a training step that uses one."""

from functools import partial

import torch
from torch import nn

from shardwright import TrainingStep

PRODUCT = "odd::product"


@torch.library.custom_op(PRODUCT, mutates_args=())
def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiply matrices, twice over."""
    return 2.0 * (x @ w)


@product.register_fake
def _(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], w.shape[1])


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, w = ctx.saved_tensors
    return product(grad, w.t()), product(x.t(), grad)


product.register_autograd(_backward, setup_context=_save)


class Doubled(nn.Module):
    """Two linear layers whose products are `odd::product`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(6, 12) / 3)
        self.second = nn.Parameter(torch.randn(12, 4) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return product(torch.tanh(product(x, self.first)), self.second).square().sum()


def doubled() -> TrainingStep:
    """Return a training step of `Doubled`."""
    return TrainingStep(Doubled, None, partial(torch.optim.SGD, lr=0.01), (torch.randn(8, 6),))
