"""
The calling convention of a training step: how a model, a loss and a batch give one scalar.

============  ==========================  =========================================
loss          batch                       the scalar
============  ==========================  =========================================
``None``      tuple or list               ``model(*batch)``
``None``      dict                        ``model(**batch)``
a function    tuple or list               ``loss(model(*batch[:-1]), batch[-1])``
a function    dict with key ``labels``    ``loss(model(**rest), labels)``
============  ==========================  =========================================

If ``loss`` is None, the model returns its loss: a scalar tensor, the first item of a tuple or
list, the key ``loss`` of a dict, the attribute ``.loss``, or else the only scalar among the items.

Several losses are added up: all items of a tuple, list or dict that a loss function returns. If a model returns a dict
without the key ``loss``, the items with ``loss`` in their names are added up.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from ...ir.not_supported import CLOSED_OVER, LOSS_BY_ROW, ONE_OPTIMIZER, OWN_LOSS, Refusal

Batch: TypeAlias = "tuple[Any, ...] | list[Any] | dict[str, Any]"
"""A global example batch: tensors, and plain Python values that the model also takes."""

LossFunction: TypeAlias = "Callable[[Any, Any], torch.Tensor]"
"""A function of the model's result and the labels; see the table above."""

MetricsFunction: TypeAlias = "Callable[[Any, Any], Mapping[str, torch.Tensor]]"
"""A function of the model's result and either the labels or the batch; see `compute_step`."""

MakeOptimizer: TypeAlias = "Callable[[Any], torch.optim.Optimizer]"
"""A function of the parameters, or of (name, parameter) pairs; see `build_optimizer`."""

Precision: TypeAlias = Literal["bf16-mixed", "fp16-mixed"]
PRECISIONS: Mapping[Precision, torch.dtype] = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}
"""Mixed precision -> the dtype of most ops in forward and backward; parameters, states and updates keep their dtype."""

ReduceDtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
REDUCE_DTYPES: tuple[ReduceDtype, ...] = ("float32", "bfloat16", "float16")
"""The dtypes that mixed precision allows for the reduction of gradients over devices."""

NAMED = "named_parameters"
"""The name of the first argument of an optimizer function that takes (name, parameter) pairs."""

LABELS = "labels"
"""The key of a dict batch that is passed to the loss function and not to the model."""


class CallError(ValueError):
    """A mismatch between a model, a loss and a batch."""


def batch_items(batch: Batch) -> dict[str, Any]:
    """Return the batch's items by key, or by position as a string."""
    if isinstance(batch, Mapping):
        return dict(batch)
    return {str(position): item for position, item in enumerate(batch)}


def compute_loss(model: nn.Module, loss: Callable[..., object] | None, batch: Batch) -> torch.Tensor:
    """
    Run the model and return its scalar loss, according to the table of this module.

    Raises:
        CallError: the result is not one floating-point number.
    """
    return compute_step(model, loss, batch, None)[0]


def compute_step(
    model: nn.Module,
    loss: Callable[..., object] | None,
    batch: Batch,
    metrics: Callable[..., object] | None,
    precision: Precision | None = None,
    device_type: str = "cpu",
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """
    Run the model and return its scalar loss and the detached metrics of its result.

    Args:
        metrics: a function of the model's result and the labels, or the batch if the model computes its own loss.
        precision: ``bf16-mixed`` or ``fp16-mixed`` runs model and loss under ``torch.autocast`` to bfloat16 or float16;
            the default, None, uses the dtypes of the tensors.
        device_type: device type of the tensors, whose autocast table applies; steps are captured on the CPU.

    Raises:
        CallError: the loss is not one floating-point number, or the metrics are not a dict of tensors.
    """
    with _autocast(precision, device_type):
        if loss is None:
            result = model(**batch) if isinstance(batch, dict) else model(*batch)
            labels, value = batch, _own_loss(result, f"the forward of {type(model).__name__}")
        else:
            if isinstance(batch, dict):
                inputs = {key: item for key, item in batch.items() if key != LABELS}
                result, labels = model(**inputs), batch[LABELS]
            else:
                result, labels = model(*batch[:-1]), batch[-1]
            value = _loss_of(
                loss(result, labels), f"the loss function {getattr(loss, '__name__', type(loss).__name__)}"
            )
        return value, _measured(metrics(result, labels)) if metrics is not None else {}


def compute_output(model: nn.Module, batch: Batch, precision: Precision | None = None) -> object:
    """Return the model's result for a batch that holds its arguments only, without labels for a loss function."""
    with _autocast(precision):
        return model(**batch) if isinstance(batch, dict) else model(*batch)


def _autocast(precision: Precision | None, device_type: str = "cpu") -> AbstractContextManager[object]:
    """
    Return the autocast context of a precision; its table decides which ops compute in a narrow dtype.

    Casts are not cached between uses, since the IR merges equal casts.
    """
    if precision is None:
        return nullcontext()
    if precision not in PRECISIONS:
        raise CallError(f"precision is {precision!r}; expected one of {', '.join(map(repr, PRECISIONS))}, or None")
    return torch.autocast(device_type, PRECISIONS[precision], cache_enabled=False)


def _own_loss(result: object, source: str) -> torch.Tensor:
    if isinstance(result, Mapping) and "loss" not in result:
        named = {name: item for name, item in result.items() if "loss" in name}
        return _added(named, source) if named else _only_scalar(result, source)
    loss = _loss_in(result)
    if isinstance(result, tuple | list) and result and not _is_scalar(loss):
        return _only_scalar({str(index): item for index, item in enumerate(result)}, source)
    return _checked_scalar(loss, source, OWN_LOSS)


def _only_scalar(items: Mapping[str, object], source: str) -> torch.Tensor:
    """Return the only item that can be the loss; raise CallError if several items or none can be."""
    scalars = [item for item in items.values() if _is_scalar(item)]
    if len(scalars) == 1:
        return _checked_scalar(scalars[0], source)
    shapes = {name: list(v.shape) if isinstance(v, torch.Tensor) else type(v).__name__ for name, v in items.items()}
    listed = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items()) or "nothing"
    raise CallError(f"{source} returned {listed}: {len(scalars) or 'none'} of them may be the loss; {OWN_LOSS.instead}")


def _is_scalar(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.is_floating_point()


def _loss_of(value: object, source: str) -> torch.Tensor:
    if isinstance(value, Mapping):
        return _added(value, source)
    if isinstance(value, Sequence):
        return _added({str(index): item for index, item in enumerate(value)}, source)
    return _checked_scalar(value, source)


def _measured(metrics: object) -> dict[str, torch.Tensor]:
    """Check the metrics and return them detached, by name."""
    if not isinstance(metrics, Mapping):
        raise CallError(f"the metrics function returned a {type(metrics).__name__}; return a dict of tensors by name")
    for name, value in metrics.items():
        if not isinstance(name, str) or not name.isidentifier() or not isinstance(value, torch.Tensor):
            raise CallError(
                f"the metrics function returned {name!r}: {type(value).__name__}; return tensors by name, such as "
                '{"accuracy": (output.argmax(-1) == labels).float().mean()}'
            )
    return {name: value.detach() for name, value in metrics.items()}


def _added(losses: Mapping[str, object], source: str) -> torch.Tensor:
    """Return the sum of several losses; raise CallError for an item that is not a scalar, by its name."""
    scalars = [_checked_scalar(item, f"{source} ({name})") for name, item in losses.items()]
    if not scalars:
        raise CallError(f"{source} returned no loss; return at least one scalar tensor")
    return functools.reduce(operator.add, scalars)


def build_optimizer(
    make: Callable[..., torch.optim.Optimizer], parameters: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer:
    """
    Build the optimizer of `parameters`; tied parameters occur once.

    Args:
        make: a function of the parameters, or of (name, parameter) pairs if its first argument is `named_parameters`.

    Raises:
        CallError: `make` does not return an optimizer, or returns an optimizer of other parameters.
    """
    arguments = parameters.items() if _first_argument(make) == NAMED else parameters.values()
    optimizer: object = make(iter(arguments))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise CallError(f"the optimizer function returned a {type(optimizer).__name__}; {ONE_OPTIMIZER.instead}")
    mine, taken = (
        set(map(id, parameters.values())),
        [parameter for group in optimizer.param_groups for parameter in group["params"]],
    )
    if taken and mine.isdisjoint(map(id, taken)):
        raise CallError(
            f"the optimizer function made {type(optimizer).__name__} of other parameters; {CLOSED_OVER.instead}"
        )
    return optimizer


def _first_argument(function: Callable[..., object]) -> str | None:
    """Return the name of the function's first argument, or None if it cannot be determined."""
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):
        return None


def _loss_in(result: object) -> object:
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, Mapping) and "loss" in result:
        return result["loss"]
    if (loss := getattr(result, "loss", None)) is not None:
        return loss
    if isinstance(result, Sequence) and result:
        return result[0]
    return result


def _checked_scalar(value: object, source: str, advice: Refusal = LOSS_BY_ROW) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise CallError(
            f"{source} returned a {type(value).__name__} where the loss was expected; return a scalar tensor, "
            "a tuple that starts with it, or an object with .loss, or pass a loss function"
        )
    if not _is_scalar(value):
        raise CallError(
            f"{source} returned a tensor of shape {tuple(value.shape)} and {value.dtype} where the loss was "
            f"expected; {advice.instead}"
        )
    return value if value.dim() == 0 else value.reshape(())
