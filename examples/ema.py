"""
Train with an exponential moving average (EMA) of the weights.

    torchrun --nproc-per-node 2 examples/ema.py [--steps N] [--cluster FILE]
    python examples/ema.py --single    # on one device, in plain PyTorch

The average is a state of the optimizer: it is split over devices as the plan splits the parameter, no weight is
gathered, and checkpoints contain it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import shardwright as sw

DECAY, RATE, MOMENTUM = 0.9, 0.05, 0.9
mse = nn.functional.mse_loss


class AveragingSGD(torch.optim.Optimizer):
    """SGD with momentum, which also keeps an average of every parameter in its state `ema`."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": RATE})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"], state["ema"] = torch.zeros_like(parameter), parameter.clone()
                state["momentum"].mul_(MOMENTUM).add_(parameter.grad)
                parameter.sub_(group["lr"] * state["momentum"])
                state["ema"].mul_(DECAY).add_(parameter, alpha=1 - DECAY)


def network() -> nn.Sequential:
    """Return the model."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))


def batch_at(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points, and the values of a function of them with noise."""
    inputs, noise = torch.randn(2, 32, 8, generator=torch.Generator().manual_seed(number))
    return inputs, inputs.sin().mean(1, keepdim=True) + 0.1 * noise[:, :1]


def train(steps: int, cluster: str = "auto") -> Iterator[float]:
    """Train, yield the loss of every step, and at last the loss of the averaged weights."""
    step = sw.parallelize(network(), mse, AveragingSGD, batch_at(0), cluster)
    for number in range(steps):
        yield step(batch_at(number)).item()
    # From here on the step has the averaged weights; to train on, keep a copy of `step.state_dict()` first.
    step.load_state_dict({name: state["ema"] for name, state in step.optimizer_state_dict()["state"].items()})
    yield step.evaluate(batch_at(steps)).loss.item()


def train_single(steps: int) -> Iterator[float]:
    """Do the same in plain PyTorch, with torch's `AveragedModel`."""
    model = network()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    average.update_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM)
    for number in range(steps):
        inputs, targets = batch_at(number)
        loss = mse(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        yield loss.item()
    inputs, targets = batch_at(steps)
    yield mse(average(inputs), targets).item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--single", action="store_true", help="train in plain PyTorch on one CPU")
    options = parser.parse_args()
    losses = train_single(options.steps) if options.single else train(options.steps, options.cluster)
    for number, loss in enumerate(losses):
        if os.environ.get("RANK", "0") == "0":
            print(f"step {number}  loss {loss:.6f}", flush=True)
