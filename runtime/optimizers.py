"""
One update of one parameter, in place, by the fused kernels of `torch.optim`.

Parameter, gradient and states are local shards of one shape and dtype; the updates are elementwise, so that
the updates of the shards are the shards of the update. `step` counts updates from 1 (a tensor of no dims,
or a number), `lr` is the learning rate of this one (likewise).

The fused kernels read memory in order whatever the strides are. Parameters and states are contiguous, for the
executor makes them so; a gradient need not be (that of a transposed weight is a view) and is copied if it is not.

Where `found_inf`, a tensor of no dims, is 1, everything stays as it is.
"""

from __future__ import annotations

import torch

Scalar = torch.Tensor | float


def adamw_(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: Scalar,
    lr: Scalar,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    found_inf: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`torch.optim.AdamW`: the parameter and its two averages, updated."""
    if param.numel():
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            [param],
            [grad.contiguous()],
            [exp_avg],
            [exp_avg_sq],
            [],
            [_count(step, param)],
            lr=lr,  # pyright: ignore[reportArgumentType]
            beta1=betas[0],
            beta2=betas[1],
            weight_decay=weight_decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
            found_inf=found_inf,
        )
    return param, exp_avg, exp_avg_sq


_NARROW = (torch.bfloat16, torch.float16)
"""In these dtypes the fused SGD of the CPU leaves as it is whatever fills a vector register."""


def sgd_(
    param: torch.Tensor,
    grad: torch.Tensor,
    momentum_buffer: torch.Tensor | None,
    step: Scalar | None,
    lr: Scalar,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    found_inf: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """
    `torch.optim.SGD`: the parameter, or the parameter and its momentum buffer where there is one, updated.

    The buffer is zero before the first update. torch leaves dampening out of the first update, so `step`
    has to be given where there is dampening.

    Raises:
        ValueError: dampening without `step`, or momentum without a buffer.
    """
    if momentum and momentum_buffer is None:
        raise ValueError(f"SGD with momentum {momentum} needs a momentum buffer")
    if dampening and step is None:
        raise ValueError(f"SGD with dampening {dampening} needs the step, for the first is not dampened")
    is_first = bool(dampening) and step is not None and int(step) == 1
    if param.dtype in _NARROW and param.device.type == "cpu":
        if found_inf is not None and found_inf > 0:
            return param if momentum_buffer is None else (param, momentum_buffer)
        if weight_decay:
            grad = grad.add(param, alpha=weight_decay)
        if momentum and momentum_buffer is not None:
            momentum_buffer.mul_(momentum).add_(grad, alpha=1.0 if is_first else 1 - dampening)
            grad = grad.add(momentum_buffer, alpha=momentum) if nesterov else momentum_buffer
        param.add_(grad, alpha=-float(lr))
    elif param.numel():
        torch._fused_sgd_(  # pyright: ignore[reportPrivateImportUsage]
            [param],
            [grad.contiguous()],
            [momentum_buffer] if momentum and momentum_buffer is not None else [],
            weight_decay=weight_decay,
            momentum=momentum,
            lr=lr,  # pyright: ignore[reportArgumentType]
            dampening=dampening,
            nesterov=nesterov,
            maximize=False,
            is_first_step=is_first,
            found_inf=found_inf,
        )
    return param if momentum_buffer is None else (param, momentum_buffer)


def increment(step: torch.Tensor, *, found_inf: torch.Tensor | None = None) -> torch.Tensor:
    """The count of this update, from that of the last."""
    return step + 1 if found_inf is None else torch.where(found_inf > 0, step, step + 1)


def _count(step: Scalar, param: torch.Tensor) -> torch.Tensor:
    """The step as the fused kernel takes it: float32, where the parameter is."""
    if isinstance(step, torch.Tensor):
        return step.to(device=param.device, dtype=torch.float32)
    return torch.tensor(float(step), device=param.device)


def assign_(old: torch.Tensor, new: torch.Tensor, *, found_inf: torch.Tensor | None = None) -> torch.Tensor:
    """The new value, in the memory of the old one."""
    return old.copy_(new if found_inf is None else torch.where(found_inf > 0, old, new))
