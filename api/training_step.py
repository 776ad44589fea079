"""
`TrainingStep`: the model, loss, optimizer and example batch that a user gives to the compiler.

A step describes training on one device, at the global batch size. It is independent of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import nn
from xdsl.utils.exceptions import PassFailedException

from ..ir.not_supported import FP8
from ..lowering.capture.calling import (
    LABELS,
    PRECISIONS,
    REDUCE_DTYPES,
    Batch,
    LossFunction,
    MakeOptimizer,
    MetricsFunction,
    Precision,
    ReduceDtype,
    batch_items,
    compute_loss,
    compute_step,
)
from ..lowering.capture.refusals import first_refusal
from ..passes.scale_loss import ScaleLossPass
from .batch_form import item_refusal


@dataclass(frozen=True)
class LossScaling:
    """
    The settings of loss scaling in ``fp16-mixed``, as in ``torch.amp.GradScaler``.

    Args:
        init_scale: the first scale.
        growth_factor: the factor of the scale after `growth_interval` steps in a row without an overflow.
        backoff_factor: the factor of the scale after a step with an overflow, which is skipped.
        growth_interval: number of steps without an overflow before the scale grows.

    Raises:
        ValueError: a setting is invalid; the message names the expected values.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        try:
            ScaleLossPass(**asdict(self)).check()
        except PassFailedException as error:
            raise ValueError(str(error).replace(ScaleLossPass.name, "LossScaling")) from error


@dataclass(frozen=True)
class TrainingStep:
    """
    One training step of one device.

    Args:
        model: the module, or a function of no arguments that returns it. A function is called under fake tensors while
            planning, so that a model larger than this machine is never allocated.
        loss: ``None`` if the model returns its loss (a scalar tensor, the first item of a tuple, the key or attribute
            ``loss``). Otherwise a function of the model's result and the labels, which are the last item of a tuple
            batch or the key ``labels`` of a dict batch.
        optimizer: a function from an iterable of parameters (of pairs of names and parameters if its first argument is
            called `named_parameters`) to a ``torch.optim`` optimizer, for example
            ``functools.partial(torch.optim.AdamW, lr=3e-4)``.
        batch: an example of the *global* batch: a tuple, list or dict of tensors and of plain values.
        clip_norm: the maximum norm of all gradients together, as in ``torch.nn.utils.clip_grad_norm_``; the step
            returns the norm as the metric ``grad_norm``.
        clip_value: the maximum absolute value in a gradient, as in ``clip_grad_value_``; applied before `clip_norm`.
        metrics: a function of the model's result and the labels (of the batch if `loss` is None) that returns tensors
            by name, such as ``{"accuracy": (output.argmax(-1) == labels).float().mean()}``, computed over the global
            batch.
        precision: ``bf16-mixed``: model and loss run under ``torch.autocast`` to bfloat16. Parameters, states and
            updates stay in float32. ``fp16-mixed``: the same to float16, with the loss scaled by `loss_scaling`.
        reduce_dtype: the dtype in which gradients that are computed in a narrow dtype are reduced over devices, this or
            ``float32``; by default the search chooses, and presets reduce in float32.
        loss_scaling: the settings of ``fp16-mixed``; by default the settings of ``torch.amp.GradScaler``.
        rows: the tensors of the batch that have a row for each example, by key or position; by default all tensors
            whose first dim equals the first dim of the first tensor. Set this if other tensors happen to have the same
            length: class weights, a mask over positions, a table.
        skip_non_finite: whether a step whose loss or gradients are not finite changes nothing; the step then returns
            the metric ``skipped``, which is 1 for such a step.

    Raises:
        TypeError, ValueError: a field is invalid; the message names the expected values.
    """

    model: nn.Module | Callable[[], nn.Module]
    loss: LossFunction | None
    optimizer: MakeOptimizer
    batch: Batch
    clip_norm: float | None = None
    clip_value: float | None = None
    metrics: MetricsFunction | None = None
    precision: Precision | None = None
    reduce_dtype: ReduceDtype | None = None
    loss_scaling: LossScaling | None = None
    skip_non_finite: bool = False
    rows: Sequence[str | int] | None = None

    def __post_init__(self) -> None:
        _check_model(self.model)
        _check_loss(self.loss)
        _check_optimizer(self.optimizer)
        _check_batch(self.batch, with_labels=self.loss is not None)
        if self.precision == "fp8-mixed":
            raise ValueError(
                f"TrainingStep.precision is 'fp8-mixed', but no matrix product runs in float8; {FP8.instead}"
            )
        _check_rows(self.rows, self.batch)
        _check_choice("precision", self.precision, tuple(PRECISIONS))
        _check_choice("reduce_dtype", self.reduce_dtype, REDUCE_DTYPES)
        if self.loss_scaling is not None and self.precision != "fp16-mixed":
            raise ValueError(
                f"TrainingStep.loss_scaling is given, but precision is {self.precision!r}; loss scaling needs "
                "precision='fp16-mixed'"
            )
        if self.skip_non_finite and self.precision == "fp16-mixed":
            raise ValueError(
                "TrainingStep.skip_non_finite is given with precision='fp16-mixed', whose loss scaling already skips "
                "steps with infinite or NaN gradients; leave it out (on_nan='ignore'), or use 'bf16-mixed'"
            )
        for name, limit in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)):
            if limit is not None and not limit > 0:
                raise ValueError(f"TrainingStep.{name} is {limit}; expected a number above 0, or None for no clipping")

    @property
    def no_rows(self) -> frozenset[str]:
        """Return the tensors of the batch that have no rows, according to `rows`."""
        given = batch_items(self.batch) if self.rows is not None else {}
        return frozenset(given) - set(map(str, self.rows or ()))

    def build_model(self) -> nn.Module:
        """
        Return the module, after building it if `model` is a function.

        Raises:
            TypeError: the function returned something else.
        """
        if isinstance(self.model, nn.Module):
            return self.model
        model = self.model()
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"TrainingStep.model returned a {type(model).__name__}; a model function must return a torch.nn.Module"
            )
        return model

    def compute(
        self, model: nn.Module, batch: Batch, device_type: str = "cpu"
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the scalar loss of `model` on `batch` and the metrics, in eager PyTorch on a type of device."""
        return compute_step(model, self.loss, batch, self.metrics, self.precision, device_type)

    def compute_loss(self, model: nn.Module, batch: Batch | None = None) -> torch.Tensor:
        """Return the scalar loss of `model` on `batch` (the example batch by default), in eager PyTorch."""
        return compute_loss(model, self.loss, self.batch if batch is None else batch)


def _check_choice(field: str, given: str | None, choices: Sequence[str]) -> None:
    if given is not None and given not in choices:
        expected = ", ".join(map(repr, choices))
        raise ValueError(f"TrainingStep.{field} is {given!r}; expected {expected}, or None")


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module) and not callable(model):
        raise TypeError(
            f"TrainingStep.model is a {type(model).__name__}; expected a torch.nn.Module or a function of no "
            "arguments that returns one"
        )
    if isinstance(model, nn.Module) and (refusal := first_refusal(model)) is not None:
        raise ValueError(f"TrainingStep.model is a {type(model).__name__}, and {refusal}")


def _check_loss(loss: object) -> None:
    if loss is not None and not callable(loss):
        raise TypeError(
            f"TrainingStep.loss is a {type(loss).__name__}; expected a function (output, labels) -> scalar "
            "tensor, or None where the model returns its own loss"
        )


def _check_optimizer(optimizer: object) -> None:
    if isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise TypeError(
            f"TrainingStep.optimizer is an instance of {kind}; expected a function from parameters to an "
            f"optimizer, for example functools.partial(torch.optim.{kind}, lr=1e-3)"
        )
    if not callable(optimizer):
        raise TypeError(
            f"TrainingStep.optimizer is a {type(optimizer).__name__}; expected a function from parameters to "
            "a torch.optim optimizer"
        )


def _check_batch(batch: object, *, with_labels: bool) -> None:
    if not isinstance(batch, tuple | list | dict):
        raise TypeError(
            f"TrainingStep.batch is a {type(batch).__name__}; expected a tuple, list or dict of the model's "
            "arguments (a single tensor is written (x,))"
        )
    items = batch_items(batch)
    for name, item in items.items():
        if not isinstance(name, str):
            raise TypeError(f"TrainingStep.batch has the key {name!r}; expected argument names (str)")
        if (refusal := item_refusal(item)) is not None:
            raise TypeError(f"TrainingStep.batch[{name!r}] {refusal}")
    if not any(isinstance(item, torch.Tensor) for item in items.values()):
        raise ValueError("TrainingStep.batch holds no tensor; give one example of the global batch")
    if with_labels and isinstance(batch, dict) and LABELS not in batch:
        raise ValueError(
            f"TrainingStep.batch has the keys {sorted(items)} and a loss function is given, which takes the "
            f"key {LABELS!r}; add it, or pass loss=None if the model computes its loss"
        )
    if with_labels and not isinstance(batch, dict) and len(items) < 2:
        raise ValueError(
            "TrainingStep.batch has one item and a loss function is given, which takes the last item as its "
            "labels; give (inputs, labels), or pass loss=None if the model computes its loss"
        )


def _check_rows(rows: Sequence[str | int] | None, batch: Batch) -> None:
    items = batch_items(batch).items()
    counts = {name: len(item) for name, item in items if isinstance(item, torch.Tensor) and item.dim()}
    if rows is not None and (len(found := {counts.get(str(name), 0) for name in rows}) != 1 or 0 in found):
        known = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
        raise ValueError(f"TrainingStep.rows is {list(rows)}; expected tensors with equal numbers of rows: {known}")
