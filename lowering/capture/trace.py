"""Trace a model and its loss on fake tensors into AOTAutograd's joint graph, with an origin for every node."""

from __future__ import annotations

import contextlib
import linecache
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, TypeAlias

import torch
import torch.fx
import torch.fx.traceback
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_map_only, tree_unflatten

from ...ir.garbage import collector_paused
from ...ir.not_supported import (
    ASSERTED,
    CHECKED,
    CONTROL_FLOW,
    HIDDEN_WEIGHT,
    KEPT_LABELS,
    NUMPY,
    OTHER_ATTENTION,
    OTHER_STEP,
    VALUE,
)
from .calling import Batch, CallError, Precision, compute_output, compute_step
from .captured import CaptureError
from .decompositions import DECOMPOSITIONS
from .effects import Effects
from .export import ExportedStep
from .fake import VALUE_NEEDED, CheckedValuesError, Fakes
from .origins import SiteRecorder, attach_origins

Returns: TypeAlias = Literal["loss", "output"]
"""The results of a traced call: the loss and the metrics, or the result of the model."""

METRICS = "metrics"
"""The key of a traced graph's `meta` that holds the names of the metrics, which are outputs after the loss."""

OUTPUT = "output"
"""The key of a traced graph's `meta` that holds the `OutputForm` of the model's result."""

MODEL, LOSS = "model", "loss"
"""The attributes of a `_WatchedStep`, and so the prefixes of its parameter and buffer names."""


@dataclass(frozen=True)
class _TensorPlace:
    """The place of tensor `number` in the structure of a model's result."""

    number: int


@dataclass(frozen=True)
class OutputForm:
    """
    The structure of a model's result, without its tensors.

    Args:
        skeleton: the result with a `_TensorPlace` in place of each tensor.
    """

    skeleton: object

    def filled(self, tensors: Sequence[object]) -> object:
        """Return the structure filled with these tensors, in order."""
        return tree_map_only(_TensorPlace, lambda place: tensors[place.number], self.skeleton)


_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype)


def _taken_apart(output: object) -> tuple[list[torch.Tensor], OutputForm]:
    """Split the result of a model into its tensors and its structure."""
    leaves, tree = tree_flatten(output)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    numbers = count()
    items = [_TensorPlace(next(numbers)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    for place, leaf in enumerate(items):
        if not isinstance(leaf, (_TensorPlace, *_PLAIN)):
            path = keystr(tree_flatten_with_path(output)[0][place][0])
            raise CaptureError(
                f"the model returns a {type(leaf).__name__} at output{path}, which may hold tensors that capture "
                "cannot see; return tensors in tuples, lists, dicts or data classes known to torch's pytree (a cache "
                "of keys and values is switched off by config.use_cache=False)"
            )
    if not tensors:
        raise CaptureError("the model returns no tensor")
    return tensors, OutputForm(tree_unflatten(items, tree))


class _ModelAndLoss(nn.Module):
    """
    A module that maps batch tensors to the scalar loss and the metrics, or to the tensors that the model returns.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., object] | None,
        batch: Batch,
        metrics: Callable[..., object] | None,
        precision: Precision | None,
        returns: Returns = "loss",
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self._batch = batch
        # The list hides a metrics module from nn.Module: its parameters must not become parameters of the step.
        self._metrics = [metrics]
        self._precision: Precision | None = precision
        self._returns: Returns = returns
        self.names: list[str] = []
        self.form: OutputForm | None = None

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self._returns == "output":
            outputs, self.form = _taken_apart(compute_output(self.model, self._with(tensors), self._precision))
            return tuple(outputs)
        loss, metrics = compute_step(self.model, self.loss, self._with(tensors), self._metrics[0], self._precision)
        self.names[:] = metrics
        return loss, *metrics.values()

    def _with(self, tensors: tuple[torch.Tensor, ...]) -> Batch:
        """Return the batch with these tensors; its other values are part of the captured program."""
        rest = iter(tensors)
        if isinstance(self._batch, dict):
            return {key: _replaced(item, rest) for key, item in self._batch.items()}
        return tuple(_replaced(item, rest) for item in self._batch)


_Call = tuple[Callable[..., object] | None, Batch, Callable[..., object] | None, Precision | None, Returns]


class _WatchedStep(_ModelAndLoss):
    """A step that records the site of each call."""

    def __init__(self, model: nn.Module, *given: *_Call) -> None:
        super().__init__(model, *given)
        self.recorder = SiteRecorder(model)
        # The list hides the model from nn.Module: it must not get a second name.
        self._effects = [Effects(model)]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with self._effects[0].watched(), self.recorder.recording():
            return super().forward(*tensors)


def _replaced(item: object, tensors: Iterator[torch.Tensor]) -> object:
    return next(tensors) if isinstance(item, torch.Tensor) else item


def trace_joint(
    model: nn.Module,
    loss: Callable[..., object] | None,
    batch: Batch,
    tensors: list[torch.Tensor],
    fakes: Fakes,
    metrics: Callable[..., object] | None = None,
    precision: Precision | None = None,
    returns: Returns = "loss",
) -> torch.fx.GraphModule:
    """
    Trace the joint graph of `model` and `loss`, or the forward graph if no parameter requires a gradient.

    The nodes have AOTAutograd's descriptors and our origins; the graph's `meta` holds the names of the metrics.

    Args:
        model: a fake module.
        batch: the user's batch, for its structure and its plain values.
        tensors: the fake twins of the batch's tensors, in order.
        returns: whether to return the loss and the metrics, or the result of the model.

    Raises:
        CaptureError: the model, its loss or an op cannot be traced.
    """
    if isinstance(loss, nn.Module):
        loss = fakes.module(loss)
    step = _WatchedStep(model, loss, batch, metrics, precision, returns)
    try:
        return _named(_traced(step, tensors, fakes), step)
    except Exception as error:
        reason = _reason(error, step, fakes.mode.needed_by)
        if isinstance(error, DataDependentOutputException) and fakes.mode.needed_by is None:
            call = _ModelAndLoss(model, loss, batch, metrics, precision, returns)
            again = _traced_from_export(call, tensors, fakes)
            if again is not None:
                return _named(again, call)
        raise CaptureError(f"cannot capture {type(model).__name__}: {reason}") from error


def _named(traced: torch.fx.GraphModule, step: _ModelAndLoss) -> torch.fx.GraphModule:
    traced.meta[METRICS] = tuple(step.names)
    traced.meta[OUTPUT] = step.form
    return traced


def _traced(step: _WatchedStep | ExportedStep, tensors: list[torch.Tensor], fakes: Fakes) -> torch.fx.GraphModule:
    # Imported here because the import takes a second and only one rank of a job captures.
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    with collector_paused(), torch.enable_grad(), contextlib.ExitStack() as stack, fakes.mode:
        _prepare(stack)
        if not any(parameter.requires_grad for parameter in step.parameters()):
            # For a forward pass alone, torch does not preserve the metadata of nodes by default.
            stack.enter_context(torch.fx.traceback.preserve_node_meta())
        joint = aot_export_joint_with_descriptors(
            stack,
            step,
            tuple(tensors),
            decompositions=dict(DECOMPOSITIONS),
        )
        module = joint.graph_module
    attach_origins(module.graph, step.recorder)
    return module


def _traced_from_export(step: _ModelAndLoss, tensors: list[torch.Tensor], fakes: Fakes) -> torch.fx.GraphModule | None:
    """Return the joint graph traced through `torch.export`, or None if it fails, as the first error says more."""
    try:
        return _traced(ExportedStep(step, tensors), tensors, fakes)
    # The call runs the model's own code, which may raise any exception.
    except Exception:
        return None


def _prepare(stack: contextlib.ExitStack) -> None:
    """Set global flags of torch for the trace of a step, until the stack is closed."""
    # `torch.compiler.is_compiling()` returns True, so models take paths that do not read values, mainly of masks.
    stack.callback(setattr, torch.compiler, "_is_compiling_flag", torch.compiler._is_compiling_flag)
    torch.compiler._is_compiling_flag = True
    # Without mkldnn, recurrent layers call ordinary ops; its op for them passes opaque memory to backward.
    # `torch.backends.mkldnn.flags` sets other flags too, and warns about them.
    stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
    torch._C._set_mkldnn_enabled(False)
    # Distributions would read the values of their arguments to check them.
    distribution = torch.distributions.Distribution
    stack.callback(distribution.set_default_validate_args, distribution._validate_args)
    distribution.set_default_validate_args(False)
    # Torch logs the traceback of a failing op; our error message replaces it.
    shown = logging.getLogger(fake_tensor.__name__)
    stack.callback(shown.setLevel, shown.level)
    shown.setLevel(logging.CRITICAL)


def _reason(error: Exception, step: _WatchedStep, needed_by: int | None) -> str:
    """Describe the failure of the model's latest call, or of the gradient of a call, with advice."""
    recorder = step.recorder
    if isinstance(error, CaptureError | CallError):
        return str(error)
    if isinstance(error, VALUE_NEEDED):
        of_gradient = recorder.by_sequence.get(needed_by) if needed_by is not None else None
        where = f"{of_gradient}: the gradient of this:" if of_gradient is not None else f"{recorder.latest}:"
        called = f"{recorder.function}, by way of {error.func}," if of_gradient is None else str(error.func)
        line = linecache.getline(recorder.latest.file, recorder.latest.line).split()[:1]
        advice = ASSERTED if line == ["assert"] and of_gradient is None else VALUE
        return f"{where} {called} needs the values of a tensor, which capture does not have; {advice.instead}"
    from torch._dynamo.exc import UncapturedHigherOrderOpError

    if isinstance(error, UncapturedHigherOrderOpError):
        return f"{recorder.latest}: a control-flow operator is called, which is not supported; {CONTROL_FLOW.instead}"
    if isinstance(error, CheckedValuesError) or (
        isinstance(error, NotImplementedError) and "with_effects" in str(error)
    ):
        return (
            f"{recorder.latest}: {recorder.function} raises an error that depends on the values of its operand, which"
            f" capture does not have; {CHECKED.instead}"
        )
    if "Unexpected fake param" in str(error):
        return f"{recorder.latest}: forward uses a parameter that is not one of the model; {HIDDEN_WEIGHT.instead}"
    advice = next((refusal.instead for part, refusal in _BY_MESSAGE.items() if part in str(error)), _RUN_IT)
    if advice is _RUN_IT and step.loss is not None and isinstance(error, TypeError | AttributeError):
        advice += f"; {KEPT_LABELS.instead}"
    # The advice about the weights of a module after training does not apply while another step is planned.
    return f"{recorder.latest}: {type(error).__name__}: {str(error).partition('; its weights are')[0]}; {advice}"


_RUN_IT = "check that the model runs on this batch in eager PyTorch"
_BY_MESSAGE = {
    ".numpy() is not": NUMPY,
    "FlexAttention": OTHER_ATTENTION,
    "CausalBias": OTHER_ATTENTION,
    "was requested after parallelize": OTHER_STEP,
}
"""Part of an error message -> advice."""
