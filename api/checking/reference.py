"""Training on one device in eager PyTorch, the reference for every plan."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from ...lowering.capture.calling import Batch, batch_items, build_optimizer
from ...passes.clip_gradients import NORM
from ...passes.scale_loss import SCALE
from ...passes.skip_non_finite import SKIPPED
from ..training_step import LossScaling, TrainingStep
from .comparison import StepValues
from .counter_random import counter_random

OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=1e-3),
}
"""Optimizers that can replace the step's own in a check."""


_FIRST_SEED = 2
"""The seed, of eleven tried, whose batches keep a VGG farthest from ties of its ReLUs and max-pools: at a tie rounding
switches a part of the gradient on or off, and float32 runs differ by a tenth."""


class TrainingRun(Protocol):
    """A run of training: on one device, on ranks, or interpreted."""

    def step(self, batch: Batch, factor: float = 1.0) -> StepValues:
        """Train one step, with the learning rates multiplied by `factor`, and return full results."""
        ...


class EagerRun:
    """
    A run of a training step on one device, from the weights that `seed` yields, with the random numbers of a plan.

    Args:
        dtype: the dtype of every floating-point parameter and buffer; by default they keep their own.
        device: the device that computes; weights are always drawn on the CPU.
    """

    def __init__(
        self, step: TrainingStep, dtype: torch.dtype | None, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        torch.manual_seed(seed)
        model = copy.deepcopy(step.model) if isinstance(step.model, nn.Module) else step.build_model()
        self._device = torch.device(device)
        self.model = model.to(self._device, dtype)
        self._step, self._seed, self._steps = step, seed, 0
        self._optimizer = build_optimizer(step.optimizer, dict(self.model.named_parameters()))
        self._scaler = _scaler(step, self._device)
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]

    def step(self, batch: Batch, factor: float = 1.0) -> StepValues:
        """Train one step, with the learning rates multiplied by `factor`, and return everything that it computed."""
        self._optimizer.zero_grad()
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        buffers = self.model.named_buffers() if self._step.skip_non_finite else ()
        before = {name: buffer.clone() for name, buffer in buffers}
        with counter_random(self._seed, self._steps):
            moved = _mapped(batch, lambda _, item: item.to(self._device) if isinstance(item, torch.Tensor) else item)
            loss, measured = self._step.compute(self.model, moved, self._device.type)
        self._steps += 1
        self._scaler.scale(loss).backward()
        self._scaler.unscale_(self._optimizer)
        if self._step.skip_non_finite:
            given = [loss, *(each.grad for each in self.model.parameters() if each.grad is not None)]
            measured[SKIPPED] = (~torch.stack([torch.isfinite(each).all() for each in given]).all()).float()
        measured |= self._clip()
        if measured.get(SKIPPED):
            for name, buffer in self.model.named_buffers():
                buffer.copy_(before[name])
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        if self._scaler.is_enabled():
            measured[SCALE] = torch.tensor(self._scaler.get_scale())
        values = {("loss", "loss"): loss.detach(), **{("metric", name): value for name, value in measured.items()}}
        for name, parameter in self.model.named_parameters():
            values["parameter", name] = parameter.detach()
            if parameter.grad is not None:
                values["gradient", name] = parameter.grad
            values |= {
                (state, name): value
                for state, value in self._optimizer.state.get(parameter, {}).items()
                if state != "step" and isinstance(value, torch.Tensor)
            }
        return values | {("buffer", name): value for name, value in self.model.named_buffers()}

    def _clip(self) -> dict[str, torch.Tensor]:
        """Clip the gradients by the step's settings, and return their norm if it is computed."""
        parameters = list(self.model.parameters())
        if self._step.clip_value is not None:
            nn.utils.clip_grad_value_(parameters, self._step.clip_value)
        if self._step.clip_norm is None:
            return {}
        return {NORM: nn.utils.clip_grad_norm_(parameters, self._step.clip_norm)}


def _scaler(step: TrainingStep, device: torch.device) -> torch.amp.GradScaler:
    """Return the scaler of the loss, which is disabled unless the precision is fp16-mixed."""
    settings = asdict(step.loss_scaling or LossScaling())
    return torch.amp.GradScaler(device.type, **settings, enabled=step.precision == "fp16-mixed")


def with_optimizer(step: TrainingStep, name: str | None) -> TrainingStep:
    """Return the step with one of `OPTIMIZERS`, or with its own if `name` is None."""
    return step if name is None else replace(step, optimizer=OPTIMIZERS[name])


def vary_batch(batch: Batch, number: int, dtype: torch.dtype | None) -> Batch:
    """
    Return the batch of step `number`, made from an example so that the loss and the gradients change with it.

    The elements of each tensor are shuffled independently: they keep their range, but labels no longer go with inputs.
    Masks (boolean tensors, and tensors named `...mask`) are shuffled by rows, because a mask that hides a whole row has
    no gradient.

    Args:
        dtype: the dtype of every floating-point item; by default they keep their own.
    """
    generator = torch.Generator().manual_seed(_FIRST_SEED + number)
    return _mapped(batch, lambda name, item: _shuffled(name, item, generator, dtype))


def _mapped(batch: Batch, function: Callable[[str, Any], object]) -> Batch:
    """Return a batch of the same form with the results of a function of the name and the value of each item."""
    items = {name: function(name, item) for name, item in batch_items(batch).items()}
    return items if isinstance(batch, dict) else type(batch)(items.values())


def _shuffled(name: str, item: object, generator: torch.Generator, dtype: torch.dtype | None) -> object:
    if not isinstance(item, torch.Tensor) or item.dim() == 0:
        return item.to(dtype) if isinstance(item, torch.Tensor) and item.is_floating_point() else item
    rows = item if item.dtype is torch.bool or name.endswith("mask") else item.flatten()
    shuffled = rows[torch.randperm(len(rows), generator=generator)].reshape(item.shape)
    return shuffled.to(dtype) if item.is_floating_point() else shuffled
