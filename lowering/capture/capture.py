"""
Capture a model, a loss, an optimizer and a batch as one fx graph of the forward and backward pass.

AOTAutograd traces the joint graph on fake tensors, so no weight is allocated (`trace`), and `normalize`
brings the graph into one form. The graph stays close to the model: compounds such as the mean-squared error are
decomposed, but an op that has a sharding rule (softmax, layer norm, GELU, attention, convolution,
cross-entropy) stays one op. Torch's core decompositions are not used: their attention gives wrong gradients
on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from .assemble import assemble
from .calling import Batch, Precision, batch_items
from .captured import CapturedStep, CaptureError, GroupSpec, OptimizerSpec, Origin, StepInput, StepOutput
from .fake import Fakes, first_names
from .optimizer import read_optimizer
from .trace import OUTPUT, OutputForm, Returns, trace_joint

__all__ = [
    "CaptureError",
    "CapturedStep",
    "GroupSpec",
    "OptimizerSpec",
    "Origin",
    "OutputForm",
    "StepInput",
    "StepOutput",
    "capture_forward",
    "capture_step",
]


def capture_step(
    model: nn.Module | Callable[[], nn.Module],
    loss: Callable[..., object] | None,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    batch: Batch,
    *,
    metrics: Callable[..., object] | None = None,
    precision: Precision | None = None,
    dtype: torch.dtype | None = None,
) -> CapturedStep:
    """
    Capture one training step as a graph of ATen ops on global shapes.

    Args:
        model: a module, which is not modified, or a function that builds a module, which is called under fake
            tensors and allocates nothing.
        loss: the loss function or None, as in `calling`.
        optimizer: a function from parameters to a ``torch.optim`` optimizer.
        batch: an example of the global batch; its plain values become part of the program.
        metrics, precision: as in `calling.compute_step`.
        dtype: the dtype for every floating-point parameter, buffer and batch tensor, or None to keep their dtypes.

    Raises:
        CaptureError: the step cannot be captured; the message names the place in the model, the reason and the remedy.
    """
    fakes = Fakes(dtype)
    fake_model = make_fake_model(model, fakes)
    parameters, _ = first_names(fake_model.named_parameters(remove_duplicate=False))
    update = read_optimizer(optimizer, parameters, fakes.mode)
    tensors = {name: item for name, item in batch_items(batch).items() if isinstance(item, torch.Tensor)}
    fake_batch = [fakes.tensor(tensor) for tensor in tensors.values()]
    traced = trace_joint(fake_model, loss, batch, fake_batch, fakes, metrics, precision)
    inputs, outputs = assemble(traced, fake_model, loss, tuple(tensors), dtype)
    return CapturedStep(traced.graph, inputs, outputs, update, model=type(fake_model).__name__)


def capture_forward(
    model: nn.Module | Callable[[], nn.Module],
    loss: Callable[..., object] | None,
    batch: Batch,
    *,
    returns: Returns,
    metrics: Callable[..., object] | None = None,
    precision: Precision | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[CapturedStep, OutputForm | None]:
    """
    Capture the forward pass in eval mode, regardless of the model's mode; writes to buffers are dropped.

    Args:
        batch: an example batch, without labels for a loss function if `returns` is ``output``.
        returns: ``loss`` for the loss and the metrics, or ``output`` for the model's result.

    Returns:
        the graph, and the structure of the model's result if `returns` is ``output``.

    Raises:
        CaptureError: the forward pass cannot be captured; the message names the place, the reason and the remedy.
    """
    fakes = Fakes(dtype)
    fake_model = make_fake_model(model, fakes).eval().requires_grad_(requires_grad=False)
    tensors = {name: item for name, item in batch_items(batch).items() if isinstance(item, torch.Tensor)}
    fake_batch = [fakes.tensor(tensor) for tensor in tensors.values()]
    traced = trace_joint(fake_model, loss, batch, fake_batch, fakes, metrics, precision, returns)
    inputs, outputs = assemble(traced, fake_model, loss, tuple(tensors), dtype, is_forward=True)
    return CapturedStep(traced.graph, inputs, outputs, None, model=type(fake_model).__name__), traced.meta[OUTPUT]


def make_fake_model(model: nn.Module | Callable[[], nn.Module], fakes: Fakes) -> nn.Module:
    """
    Return a twin of the model with fake tensors.

    Raises:
        CaptureError: the model's function fails or does not return a module, or parameters share memory.
    """
    try:
        return fakes.module(model)
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(
            f"cannot build the model under fake tensors: {type(error).__name__}: {error}; check that its function runs "
            "on its own, and that it does not read the values of tensors (in .item(), tolist() or an if); or build the "
            "module and pass it"
        ) from error
