"""
Updates of parameters, in place, by the fused kernels of `torch.optim`: of one parameter, or of several at once.

Parameter, gradient and states are local shards of one shape and dtype; the updates are elementwise, so that
the updates of the shards are the shards of the update. `step` counts updates from 1 (a tensor of no dims,
or a number), `lr` is the learning rate of this one (likewise). Parameters that are updated together may be of
different shapes; they are of one dtype, and share step and rate. Where `found_inf`, a tensor of no dims, is 1,
everything stays as it is.

The fused kernels read memory in order whatever the strides are. Parameters and states are contiguous, for the
executor makes them so; a gradient need not be (that of a transposed weight is a view) and is copied if it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

import torch
from torch._ops import OpOverloadPacket

_aten = torch.ops.aten

Scalar = torch.Tensor | float
Tensors = Sequence[torch.Tensor]


class AdamOptions(TypedDict, total=False):
    """What Adam and AdamW have the same defaults for, by torch's names; `found_inf` as above."""

    betas: tuple[float, float]
    eps: float
    amsgrad: bool
    maximize: bool
    found_inf: torch.Tensor | None


class AdamSettings(AdamOptions, total=False):
    """All settings of Adam and AdamW."""

    weight_decay: float


class SgdSettings(TypedDict, total=False):
    """All settings of SGD, by torch's names."""

    momentum: float
    dampening: float
    nesterov: bool
    weight_decay: float
    maximize: bool
    found_inf: torch.Tensor | None


def adam_(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: Scalar,
    lr: Scalar,
    *,
    max_exp_avg_sq: torch.Tensor | None = None,
    **settings: Unpack[AdamSettings],
) -> list[torch.Tensor]:
    """
    `torch.optim.Adam`: the parameter, its two averages and the maximum where there is one, updated.

    Args:
        max_exp_avg_sq: kept with `amsgrad`.
        settings: those of `joined_adam_`.
    """
    largest = [] if max_exp_avg_sq is None else [max_exp_avg_sq]
    return joined_adam_([param], [grad], [exp_avg], [exp_avg_sq], step, lr, max_exp_avg_sq=largest, **settings)


def adamw_(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: Scalar,
    lr: Scalar,
    *,
    max_exp_avg_sq: torch.Tensor | None = None,
    **settings: Unpack[AdamSettings],
) -> list[torch.Tensor]:
    """`torch.optim.AdamW`, as `adam_`."""
    largest = [] if max_exp_avg_sq is None else [max_exp_avg_sq]
    return joined_adamw_([param], [grad], [exp_avg], [exp_avg_sq], step, lr, max_exp_avg_sq=largest, **settings)


def sgd_(
    param: torch.Tensor,
    grad: torch.Tensor,
    momentum_buffer: torch.Tensor | None,
    step: Scalar | None,
    lr: Scalar,
    **settings: Unpack[SgdSettings],
) -> torch.Tensor | list[torch.Tensor]:
    """
    `torch.optim.SGD`: the parameter, or the parameter and its momentum buffer where there is one, updated.

    Args:
        settings: those of `joined_sgd_`.

    Raises:
        ValueError: dampening without `step`, or momentum without a buffer.
    """
    buffers = None if momentum_buffer is None else [momentum_buffer]
    updated = joined_sgd_([param], [grad], buffers, step, lr, **settings)
    return updated if buffers else updated[0]


def joined_adam_(
    param: Tensors,
    grad: Tensors,
    exp_avg: Tensors,
    exp_avg_sq: Tensors,
    step: Scalar,
    lr: Scalar,
    *,
    max_exp_avg_sq: Tensors = (),
    weight_decay: float = 0.0,
    **settings: Unpack[AdamOptions],
) -> list[torch.Tensor]:
    """
    Adam of several parameters: all of them, then all of each kind of state, updated.

    Args:
        settings: torch's `betas`, `eps`, `amsgrad` and `maximize`, and `found_inf`.
    """
    given = [param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq]
    return _adam(_aten._fused_adam_, given, step, lr, weight_decay=weight_decay, **settings)


def joined_adamw_(
    param: Tensors,
    grad: Tensors,
    exp_avg: Tensors,
    exp_avg_sq: Tensors,
    step: Scalar,
    lr: Scalar,
    *,
    max_exp_avg_sq: Tensors = (),
    weight_decay: float = 0.01,
    **settings: Unpack[AdamOptions],
) -> list[torch.Tensor]:
    """AdamW of several parameters, as `joined_adam_`."""
    given = [param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq]
    return _adam(_aten._fused_adamw_, given, step, lr, weight_decay=weight_decay, **settings)


def _adam(
    kernel: OpOverloadPacket,
    given: Sequence[Tensors],
    step: Scalar,
    lr: Scalar,
    *,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    amsgrad: bool = False,
    maximize: bool = False,
    found_inf: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    params, grads, *states = given
    if kept := _filled(params):
        _by_rate(kernel, lr)(
            [_real(params[i]) for i in kept],
            [_real(grads[i].contiguous()) for i in kept],
            *([_real(state[i]) for i in kept] if state else [] for state in states),
            [_count(step, params[0])] * len(kept),
            lr=lr,
            beta1=betas[0],
            beta2=betas[1],
            weight_decay=weight_decay,
            eps=eps,
            amsgrad=amsgrad,
            maximize=maximize,
            found_inf=found_inf,
        )
    return [*params, *(tensor for state in states for tensor in state)]


_NARROW = (torch.bfloat16, torch.float16)
"""In these dtypes the fused SGD of the CPU leaves as it is whatever fills a vector register."""


def joined_sgd_(
    param: Tensors,
    grad: Tensors,
    momentum_buffer: Tensors | None,
    step: Scalar | None,
    lr: Scalar,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    maximize: bool = False,
    found_inf: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """
    SGD of several parameters: all of them, then all momentum buffers where there are any, updated.

    Buffers are zero before the first update. torch leaves dampening out of the first update, so `step`
    has to be given where there is dampening.

    Raises:
        ValueError: dampening without `step`, or momentum without a buffer.
    """
    if momentum and momentum_buffer is None:
        raise ValueError(f"SGD with momentum {momentum} needs a momentum buffer")
    if momentum and dampening and step is None:
        raise ValueError(f"SGD with dampening {dampening} needs the step number, since the first step is not dampened")
    if momentum and dampening and step is not None and int(step) == 1:
        dampening = 0.0
    buffers = momentum_buffer if momentum and momentum_buffer is not None else ()
    kept = _filled(param)
    if kept and param[0].dtype in _NARROW and param[0].device.type == "cpu":
        for i in () if found_inf is not None and found_inf > 0 else kept:
            direction = grad[i].neg() if maximize else grad[i]
            if weight_decay:
                direction = direction.add(param[i], alpha=weight_decay)
            if buffers:
                buffers[i].mul_(momentum).add_(direction, alpha=1 - dampening)
                direction = direction.add(buffers[i], alpha=momentum) if nesterov else buffers[i]
            param[i].add_(direction, alpha=-float(lr))
    elif kept:
        _by_rate(_aten._fused_sgd_, lr)(
            [_real(param[i]) for i in kept],
            [_real(grad[i].contiguous()) for i in kept],
            [_real(buffers[i]) for i in kept] if buffers else [],
            weight_decay=weight_decay,
            momentum=momentum,
            lr=lr,
            dampening=dampening,
            nesterov=nesterov,
            maximize=maximize,
            is_first_step=False,
            found_inf=found_inf,
        )
    return [*param, *(momentum_buffer or ())]


def increment(step: torch.Tensor, *, found_inf: torch.Tensor | None = None) -> torch.Tensor:
    """The count of this update, from that of the last."""
    return step + 1 if found_inf is None else torch.where(found_inf > 0, step, step + 1)


def _by_rate(kernel: OpOverloadPacket, lr: Scalar) -> Callable[..., None]:
    """The overload of a fused kernel that takes the learning rate where it is: on a GPU nobody waits for it there."""
    return kernel.tensor_lr if isinstance(lr, torch.Tensor) else kernel.default


def _filled(params: Tensors) -> list[int]:
    """The parameters of which there is any part on this rank."""
    return [i for i, param in enumerate(params) if param.numel()]


def _real(value: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones, which `torch.optim` updates each by itself; others as they are."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _count(step: Scalar, param: torch.Tensor) -> torch.Tensor:
    """The step as the fused kernel takes it: float32, where the parameter is."""
    if isinstance(step, torch.Tensor):
        return step.to(device=param.device, dtype=torch.float32)
    return torch.tensor(float(step), device=param.device)


def assign_(old: torch.Tensor, new: torch.Tensor, *, found_inf: torch.Tensor | None = None) -> torch.Tensor:
    """The new value, in the memory of the old one."""
    return old.copy_(new if found_inf is None else torch.where(found_inf > 0, old, new))
