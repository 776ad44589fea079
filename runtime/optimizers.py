"""
In-place updates of one or several parameters by the fused kernels of `torch.optim`.

Parameter, gradient and states are local shards of one shape and dtype. The updates are elementwise, so that
updating the shards is the same as sharding the update. `step` counts updates from 1 (a scalar tensor or a number),
and `lr` is the learning rate of this update (a scalar tensor or a number). Parameters that are updated together may
have different shapes; they have one dtype, and share step and rate. If the scalar tensor `found_inf` is 1,
nothing is updated.

The fused kernels read memory in order and ignore strides. Parameters and states are contiguous, because the executor
creates them so; a gradient that is not contiguous (of a transposed weight, for example) is copied first.

`foreach` and its like are one operation on several tensors: `torch._foreach_*`, which a GPU computes in one kernel for
any number of tensors. If operands differ in dtype or memory layout, torch falls back to one kernel per tensor, so such
operands are converted first, as torch's ops on single tensors do inside their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypedDict, Unpack

import torch
from torch._ops import OpOverloadPacket

_aten = torch.ops.aten

Scalar = torch.Tensor | float
Tensors = Sequence[torch.Tensor]


class AdamSettings(TypedDict, total=False):
    """The settings of Adam and AdamW, by torch's names; `found_inf` as above."""

    betas: tuple[float, float]
    eps: float
    weight_decay: float
    amsgrad: bool
    maximize: bool
    found_inf: torch.Tensor | None


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
    Apply `torch.optim.Adam`; return the updated parameter, its two averages, and its maximum if there is one.

    Args:
        max_exp_avg_sq: the maximum of `exp_avg_sq`, with `amsgrad`.
        settings: settings of `joined_adam_`.
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
    """Apply `torch.optim.AdamW`; arguments and results are as in `adam_`."""
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
    Apply `torch.optim.SGD`; return the updated parameter, with its momentum buffer if there is one.

    Args:
        settings: settings of `joined_sgd_`.

    Raises:
        ValueError: `step` is missing with dampening, or the buffer with momentum.
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
    **settings: Unpack[AdamSettings],
) -> list[torch.Tensor]:
    """
    Apply Adam to several parameters; return all updated parameters, then all states of each kind.

    Args:
        settings: torch's `betas`, `eps`, `weight_decay` (0), `amsgrad` and `maximize`, and `found_inf`.
    """
    return _adam(_aten._fused_adam_, [param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq], step, lr, **settings)


def joined_adamw_(
    param: Tensors,
    grad: Tensors,
    exp_avg: Tensors,
    exp_avg_sq: Tensors,
    step: Scalar,
    lr: Scalar,
    *,
    max_exp_avg_sq: Tensors = (),
    **settings: Unpack[AdamSettings],
) -> list[torch.Tensor]:
    """Apply AdamW to several parameters; arguments and results are as in `joined_adam_`, but `weight_decay` is 0.01."""
    settings.setdefault("weight_decay", 0.01)
    return _adam(_aten._fused_adamw_, [param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq], step, lr, **settings)


def _adam(
    kernel: OpOverloadPacket,
    given: Sequence[Tensors],
    step: Scalar,
    lr: Scalar,
    *,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    amsgrad: bool = False,
    maximize: bool = False,
    found_inf: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    params, grads, *states = given
    if filled := _filled(params):
        _with_rate(kernel, lr, params[0].dtype)(
            [_real(params[i]) for i in filled],
            [_real(grads[i].contiguous()) for i in filled],
            *([_real(state[i]) for i in filled] if state else [] for state in states),
            [_count(step, params[0])] * len(filled),
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
"""The dtypes that the CPU's fused SGD handles wrongly: elements in full vector registers stay as they are."""


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
    Apply SGD to several parameters; return all updated parameters, then all momentum buffers if there are any.

    Buffers are zero before the first update. torch does not dampen the first update, so dampening
    requires `step`.

    Raises:
        ValueError: `step` is missing with dampening, or the buffer with momentum.
    """
    if momentum and momentum_buffer is None:
        raise ValueError(f"SGD with momentum {momentum} needs a momentum buffer")
    if momentum and dampening and step is None:
        raise ValueError(f"SGD with dampening {dampening} needs the step number, since the first step is not dampened")
    if momentum and dampening and step is not None and int(step) == 1:
        dampening = 0.0
    buffers = momentum_buffer if momentum and momentum_buffer is not None else ()
    filled = _filled(param)
    if filled and param[0].dtype in _NARROW and param[0].device.type == "cpu":
        for i in () if found_inf is not None and found_inf > 0 else filled:
            direction = grad[i].neg() if maximize else grad[i]
            if weight_decay:
                direction = direction.add(param[i], alpha=weight_decay)
            if buffers:
                buffers[i].mul_(momentum).add_(direction, alpha=1 - dampening)
                direction = direction.add(buffers[i], alpha=momentum) if nesterov else buffers[i]
            param[i].add_(direction, alpha=-float(lr))
    elif filled:
        _with_rate(_aten._fused_sgd_, lr, param[0].dtype)(
            [_real(param[i]) for i in filled],
            [_real(grad[i].contiguous()) for i in filled],
            [_real(buffers[i]) for i in filled] if buffers else [],
            weight_decay=weight_decay,
            momentum=momentum,
            dampening=dampening,
            nesterov=nesterov,
            maximize=maximize,
            is_first_step=False,
            found_inf=found_inf,
        )
    return [*param, *(momentum_buffer or ())]


def increment(step: torch.Tensor, *, found_inf: torch.Tensor | None = None) -> torch.Tensor:
    """Return the count of updates including this one; a skipped update is not counted."""
    return step + 1 if found_inf is None else torch.where(found_inf > 0, step, step + 1)


def _with_rate(kernel: OpOverloadPacket, lr: Scalar, dtype: torch.dtype) -> Callable[..., None]:
    """
    Bind the learning rate to the overload of a fused kernel that accepts it.

    A rate on a GPU stays there, and is given as float32, the only dtype that the CUDA kernels read. With parameters of
    float64 this would lose digits, so for them the host reads the rate and waits for it.
    """
    if not isinstance(lr, torch.Tensor):
        return partial(kernel.default, lr=lr)
    if lr.device.type != "cuda":
        return partial(kernel.tensor_lr, lr=lr)
    if torch.finfo(dtype).bits == 64:
        return partial(kernel.default, lr=lr.item())
    return partial(kernel.tensor_lr, lr=lr.float())


def _filled(params: Tensors) -> list[int]:
    """Return the indices of the parameters whose part on this rank is not empty."""
    return [i for i, param in enumerate(params) if param.numel()]


def _real(value: torch.Tensor) -> torch.Tensor:
    """View complex numbers as pairs of real numbers, which `torch.optim` updates independently."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _count(step: Scalar, param: torch.Tensor) -> torch.Tensor:
    """Return the step in the fused kernel's form: float32, on the parameter's device."""
    if isinstance(step, torch.Tensor):
        return step.to(device=param.device, dtype=torch.float32)
    return torch.tensor(float(step), device=param.device)


def assign_(old: torch.Tensor, new: torch.Tensor, *, found_inf: torch.Tensor | None = None) -> torch.Tensor:
    """Copy the new value to the memory of the old value."""
    return old.copy_(new if found_inf is None else torch.where(found_inf > 0, old, new))


Argument = Sequence[torch.Tensor] | torch.Tensor | float


def foreach(function: str, first: Sequence[torch.Tensor], *others: Argument, **options: object) -> list[torch.Tensor]:
    """
    Apply `function` to each of several tensors: `foreach("mul", [x, y], [z, w])` is `[x * z, y * w]`.

    Args:
        function: torch's name of the function, without `_foreach_`.
        first: local shards of one dtype.
        others: lists of as many tensors of the same dtype, or one number or scalar tensor for all.
    """
    return list(_function(function)(*_alike(first, (first, *others)), **options))


def foreach_(function: str, first: Sequence[torch.Tensor], *others: Argument, **options: object) -> list[torch.Tensor]:
    """Apply `function` as `foreach` does, and write the results to `first`."""
    _function(f"{function}_")(first, *_alike(first, others), **options)
    return list(first)


def sum_of_squares(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """
    Return the sum of the squares of all elements, a scalar; narrow dtypes are summed in float32.

    Args:
        tensors: local shards of one dtype; any may be empty.
    """
    dtype = torch.float32 if tensors[0].dtype in (torch.bfloat16, torch.float16) else None
    norms = _function("norm")(list(tensors), 2, dtype)
    return torch.stack(norms).square_().sum()


@cache
def _function(name: str) -> Callable[..., list[torch.Tensor]]:
    return getattr(torch, f"_foreach_{name}")


def _alike(first: Sequence[torch.Tensor], arguments: Sequence[Argument]) -> Sequence[Argument]:
    """Convert arguments so that one GPU kernel can process them; a CPU always processes tensors one by one."""
    if first[0].device.type == "cpu":
        return arguments
    return [_for_kernel(first[0], argument) for argument in arguments]


def _for_kernel(like: torch.Tensor, given: Argument) -> Argument:
    match given:
        case torch.Tensor():
            return given.item() if given.device.type == "cpu" else given.to(like.dtype)
        case float() | int():
            return given
        case _:
            return [tensor.contiguous() for tensor in given]
