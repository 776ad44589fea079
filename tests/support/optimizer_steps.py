"""Steps with all kinds of optimizers: torch's own, and some that users copy from papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from shardwright.api.training_step import TrainingStep

WIDTH, CLASSES, ROWS = 8, 6, 8


class Net(nn.Module):
    """A model with matrices of three shapes, biases, a normalisation and a scalar parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.middle = nn.Linear(2 * WIDTH, 2 * WIDTH, bias=False)
        self.norm = nn.LayerNorm(2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of each row."""
        hidden = torch.tanh(self.up(x))
        hidden = hidden + torch.tanh(self.middle(self.norm(hidden)))
        return self.down(hidden) * self.scale


class ElementwiseNet(nn.Module):
    """
    A model for optimizers that update each element alone: all its matrices have one shape, and so have its vectors.

    The update of each shape is captured, which takes longer than training.
    """

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of each row."""
        return self.down(self.norm(torch.tanh(self.up(x)))) * self.scale


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", program 1."""

    def __init__(
        self, params: Any, lr: float = 1e-2, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.1
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                update = state["exp_avg"] * beta1 + p.grad * (1 - beta1)
                p.add_(torch.sign(update), alpha=-group["lr"])
                state["exp_avg"].mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Muon(torch.optim.Optimizer):
    """Jordan et al. 2024, "Muon: An optimizer for hidden layers", in the parameter's own precision."""

    def __init__(self, params: Any, lr: float = 0.02, momentum: float = 0.95, steps: int = 5) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "steps": steps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p.grad)
                buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(p.grad)
                update = p.grad.add(buffer, alpha=group["momentum"])
                if update.dim() == 2:
                    update = orthogonal(update, group["steps"]) * max(1, p.size(0) / p.size(1)) ** 0.5
                p.add_(update, alpha=-group["lr"])


def orthogonal(matrix: torch.Tensor, steps: int) -> torch.Tensor:
    """Run a Newton-Schulz iteration towards the nearest orthogonal matrix."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.T if matrix.size(0) > matrix.size(1) else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if matrix.size(0) > matrix.size(1) else x


class OldAdam(torch.optim.Optimizer):
    """Adam as users write it by hand: a Python number counts steps, and a slow copy follows the weights."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, grad = self.state[p], p.grad.data
                if len(state) == 0:
                    state["step"], state["decay"] = 0, 1.0
                    state["mean"], state["square"] = torch.zeros_like(p.data), torch.zeros_like(p.data)
                    state["slow"] = p.data.clone()
                state["step"] += 1
                state["decay"] *= 0.9
                state["mean"].mul_(0.9).add_(grad, alpha=0.1)
                state["square"].mul_(0.99).addcmul_(grad, grad, value=0.01)
                size = group["lr"] * math.sqrt(1 - 0.99 ** state["step"]) / (1 - state["decay"])
                if state["step"] > 2:
                    size = size * 0.5
                p.data = p.data.addcdiv(state["mean"], state["square"].sqrt() + 1e-8, value=-size)
                state["slow"].lerp_(p.data, max(0.3, 1 / (1 + state["step"])))


def in_groups(make: Callable[..., torch.optim.Optimizer], parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer with two groups, matrices and other parameters, that have different learning rates."""
    listed = list(parameters)
    matrices = [each for each in listed if each.dim() >= 2]
    others = [each for each in listed if each.dim() < 2]
    return make([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0, "lr": 3e-3}])


_O = torch.optim
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "amsgrad": partial(_O.Adam, lr=1e-2, amsgrad=True, weight_decay=0.1),
    "dampened sgd": partial(_O.SGD, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "maximized sgd": partial(_O.SGD, lr=1e-3, momentum=0.9, nesterov=True, maximize=True),
    "rmsprop": partial(_O.RMSprop, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": partial(_O.Adagrad, lr=0.05, lr_decay=0.1, initial_accumulator_value=0.1),
    "adadelta": partial(_O.Adadelta, lr=0.5),
    "adamax": partial(_O.Adamax, lr=1e-2),
    "nadam": partial(_O.NAdam, lr=1e-2),
    "radam": partial(_O.RAdam, lr=1e-2, betas=(0.9, 0.99)),
    "rprop": partial(_O.Rprop, lr=1e-3),
    "adafactor": partial(_O.Adafactor, lr=1e-2),
    "asgd": partial(_O.ASGD, lr=0.05, t0=2),
    "lion": Lion,
    "muon": Muon,
    "old adam": OldAdam,
    "rmsprop in groups": partial(in_groups, partial(_O.RMSprop, lr=1e-3)),
}


IN_ALL_WAYS = ("rmsprop", "adafactor", "muon")
"""An elementwise optimizer, one with states of other shapes, and one with matrix products."""


def step(name: str, clip_norm: float | None = None) -> TrainingStep:
    """Return a step of a small classifier with an optimizer of `OPTIMIZERS`; most train the smaller model."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    model = Net if name.startswith(IN_ALL_WAYS) else ElementwiseNet
    return TrainingStep(model, nn.functional.cross_entropy, OPTIMIZERS[name], (x, labels), clip_norm)
