"""Ops outside the table, as a user's library would define them, and training steps that use them."""

import os
import signal
from functools import partial

import torch
from torch import nn

from shardwright import TrainingStep

PRODUCT = "odd::product"


@torch.library.custom_op(PRODUCT, mutates_args=())
def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return twice the matrix product."""
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


@torch.library.custom_op("odd::grouped_scores", mutates_args=())
def grouped_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Scores of [batch, heads, n, d] against [batch, fewer heads, m, d], normalised over m."""
    shared = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return (q @ shared.mT).softmax(-1)


@torch.library.custom_op("odd::banded", mutates_args=())
def banded(x: torch.Tensor, width: int) -> torch.Tensor:
    """Replace each row by the sum of the rows at a distance less than `width`."""
    places = torch.arange(x.shape[0])
    near = (places[:, None] - places[None, :]).abs() < width
    return near.to(x.dtype) @ x


@torch.library.custom_op("odd::affine", mutates_args=())
def affine(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return a product plus a bias."""
    return x @ w + bias


@torch.library.custom_op("odd::peak", mutates_args=())
def peak(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maximum of each column, and the doubled input."""
    top = x.amax(0)
    return top, x * 2.0


@torch.library.custom_op("odd::flattened", mutates_args=())
def flattened(x: torch.Tensor) -> torch.Tensor:
    """[batch, n, d] as [batch * n, d], shifted."""
    return x.reshape(-1, x.shape[-1]) + 1.0


@torch.library.custom_op("odd::picked", mutates_args=())
def picked(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows by index."""
    return table[index]


@torch.library.custom_op("odd::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    """Return the operand plus a random number; the schema does not declare the randomness."""
    return x + torch.rand(())


@torch.library.custom_op("odd::overwritten", mutates_args=("x",))
def overwritten(x: torch.Tensor) -> torch.Tensor:
    """Return zeros, and write zeros to the operand."""
    x.zero_()
    return x.clone()


@torch.library.custom_op("odd::whole", mutates_args=())
def whole(x: torch.Tensor) -> torch.Tensor:
    """Scale each element by its index among all elements."""
    order = torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape)
    return x * order / x.numel()


@torch.library.custom_op("odd::deadly", mutates_args=())
def deadly(x: torch.Tensor) -> torch.Tensor:
    """Kill the process if the operand is in double precision."""
    if x.dtype == torch.float64:
        os.kill(os.getpid(), signal.SIGKILL)
    return x.clone()


@torch.library.custom_op("odd::first_columns", mutates_args=())
def first_columns(x: torch.Tensor) -> torch.Tensor:
    """Keep the first 16 columns: an operand of at most 16 columns does not reveal that number."""
    return torch.cat([x[..., :16], torch.zeros_like(x[..., 16:])], -1)


@first_columns.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


first_columns.register_autograd(lambda ctx, grad: first_columns(grad))


class Windowed(nn.Module):
    """Two linear layers with `odd::first_columns` between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(first_columns(self.first(x).relu()))


def windowed() -> TrainingStep:
    """Return a training step of `Windowed`."""
    batch = torch.randn(16, 8), torch.randn(16, 8)
    return TrainingStep(Windowed(), nn.functional.mse_loss, partial(torch.optim.SGD, lr=0.1), batch)
