"""
How a training step is called: from a model, a loss and a batch to one scalar.

============  ==========================  =========================================
loss          batch                       the scalar
============  ==========================  =========================================
``None``      tuple or list               ``model(*batch)``
``None``      dict                        ``model(**batch)``
a function    tuple or list               ``loss(model(*batch[:-1]), batch[-1])``
a function    dict with key ``labels``    ``loss(model(**rest), labels)``
============  ==========================  =========================================

Where ``loss`` is None the model returns its loss: a scalar tensor, the first item of a tuple or
list, the key ``loss`` of a dict, the attribute ``.loss``, or else the one scalar among the items.

Several losses are added up: the items of a tuple, list or dict that a loss function returns, and of a dict that a
model returns without the key ``loss`` the items that have ``loss`` in their names.
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
"""A global example batch: tensors, and plain Python values that the model takes beside them."""

LossFunction: TypeAlias = "Callable[[Any, Any], torch.Tensor]"
"""Of what the model returns, and of labels; see above."""

MetricsFunction: TypeAlias = "Callable[[Any, Any], Mapping[str, torch.Tensor]]"
"""Of what the model returns, and of labels or of the batch; see `compute_step`."""

MakeOptimizer: TypeAlias = "Callable[[Any], torch.optim.Optimizer]"
"""Of the parameters, or of pairs of names and parameters; see `build_optimizer`."""

Precision: TypeAlias = Literal["bf16-mixed", "fp16-mixed"]
PRECISIONS: Mapping[Precision, torch.dtype] = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}
"""Of mixed precision, by the dtype of most of forward and backward: parameters, states and updates stay as they are."""

ReduceDtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
REDUCE_DTYPES: tuple[ReduceDtype, ...] = ("float32", "bfloat16", "float16")
"""In which gradients may be reduced over devices, in mixed precision."""

NAMED = "named_parameters"
"""What the first argument of a function that makes an optimizer is called, if it wants names beside parameters."""

LABELS = "labels"
"""The key of a dict batch that is kept from the model and handed to the loss function."""


class CallError(ValueError):
    """A model, a loss and a batch that do not fit together."""


def batch_items(batch: Batch) -> dict[str, Any]:
    """The batch's items by name: its keys, or its positions as strings."""
    if isinstance(batch, Mapping):
        return dict(batch)
    return {str(position): item for position, item in enumerate(batch)}


def compute_loss(model: nn.Module, loss: Callable[..., object] | None, batch: Batch) -> torch.Tensor:
    """
    Run the model and return its scalar loss, by the module's table.

    Raises:
        CallError: what came out is not one floating-point number.
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
    Run the model and return its scalar loss, and the metrics of what it gave, which no gradient goes through.

    Args:
        metrics: a function of the model's result and of the labels, or of the batch where the model computes its loss.
        precision: ``bf16-mixed`` or ``fp16-mixed`` runs model and loss under ``torch.autocast`` to bfloat16 or float16;
            None as the tensors are.
        device_type: of the tensors, which says whose table of ops `precision` follows; steps are captured on the CPU.

    Raises:
        CallError: the loss is not one floating-point number, or the metrics are no tensors by name.
    """
    with _autocast(precision, device_type):
        return _computed(model, loss, batch, metrics)


def compute_output(model: nn.Module, batch: Batch, precision: Precision | None = None) -> object:
    """What the model gives for a batch of its own arguments, without labels that are a loss function's."""
    with _autocast(precision):
        return model(**batch) if isinstance(batch, dict) else model(*batch)


def _autocast(precision: Precision | None, device_type: str = "cpu") -> AbstractContextManager[object]:
    """
    Autocast of a precision: its table says which ops compute in a narrow dtype. Of the CPU, where steps are captured.

    Casts are not kept from one use to the next: equal ones are merged in the IR.
    """
    if precision is None:
        return nullcontext()
    if precision not in PRECISIONS:
        raise CallError(f"precision is {precision!r}; expected one of {', '.join(map(repr, PRECISIONS))}, or None")
    return torch.autocast(device_type, PRECISIONS[precision], cache_enabled=False)


def _computed(
    model: nn.Module, loss: Callable[..., object] | None, batch: Batch, metrics: Callable[..., object] | None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    if loss is None:
        result = model(**batch) if isinstance(batch, dict) else model(*batch)
        labels, value = batch, _own_loss(result, f"the forward of {type(model).__name__}")
    else:
        if isinstance(batch, dict):
            inputs = {key: item for key, item in batch.items() if key != LABELS}
            result, labels = model(**inputs), batch[LABELS]
        else:
            result, labels = model(*batch[:-1]), batch[-1]
        value = _loss_of(loss(result, labels), f"the loss function {getattr(loss, '__name__', type(loss).__name__)}")
    return value, _measured(metrics(result, labels)) if metrics is not None else {}


def _own_loss(result: object, source: str) -> torch.Tensor:
    """The loss that a model returned."""
    if isinstance(result, Mapping) and "loss" not in result:
        named = {name: each for name, each in result.items() if "loss" in name}
        return _added(named, source) if named else _only_scalar(result, source)
    found = _loss_in(result)
    if isinstance(result, tuple | list) and result and not _is_scalar(found):
        return _only_scalar({str(index): each for index, each in enumerate(result)}, source)
    return _checked_scalar(found, source, OWN_LOSS)


def _only_scalar(items: Mapping[str, object], source: str) -> torch.Tensor:
    """The one item that can be the loss; CallError where there are others, or none."""
    found = [each for each in items.values() if _is_scalar(each)]
    if len(found) == 1:
        return _checked_scalar(found[0], source)
    shapes = {name: list(v.shape) if isinstance(v, torch.Tensor) else type(v).__name__ for name, v in items.items()}
    listed = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items()) or "nothing"
    raise CallError(f"{source} returned {listed}: {len(found) or 'none'} of them may be the loss; {OWN_LOSS.instead}")


def _is_scalar(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.is_floating_point()


def _loss_of(value: object, source: str) -> torch.Tensor:
    """The loss that a loss function returned."""
    if isinstance(value, Mapping):
        return _added(value, source)
    if isinstance(value, Sequence):
        return _added({str(index): each for index, each in enumerate(value)}, source)
    return _checked_scalar(value, source)


def _measured(metrics: object) -> dict[str, torch.Tensor]:
    """Metrics by name, without gradients."""
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
    """The sum of several losses; CallError for one that is none, by its name."""
    scalars = [_checked_scalar(each, f"{source} ({name})") for name, each in losses.items()]
    if not scalars:
        raise CallError(f"{source} returned no loss; return at least one scalar tensor")
    return functools.reduce(operator.add, scalars)


def build_optimizer(
    make: Callable[..., torch.optim.Optimizer], parameters: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer:
    """
    The optimizer of parameters, ties once.

    Args:
        make: a function of them; of pairs of their names and them, where its first argument is `named_parameters`.

    Raises:
        CallError: it returns something else, or an optimizer of other parameters.
    """
    given = parameters.items() if _first_argument(make) == NAMED else parameters.values()
    made: object = make(iter(given))
    if not isinstance(made, torch.optim.Optimizer):
        raise CallError(f"the optimizer function returned a {type(made).__name__}; {ONE_OPTIMIZER.instead}")
    mine, taken = set(map(id, parameters.values())), [each for group in made.param_groups for each in group["params"]]
    if taken and mine.isdisjoint(map(id, taken)):
        raise CallError(f"the optimizer function made {type(made).__name__} of other parameters; {CLOSED_OVER.instead}")
    return made


def _first_argument(function: Callable[..., object]) -> str | None:
    """The name of it; None where that cannot be known."""
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
