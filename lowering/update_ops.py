"""
The optimizer's updates of one parameter as pure functions: what the runtime's in-place ones compute.

The formulas are those of `torch.optim.AdamW` and `torch.optim.SGD` for a single tensor. `param`, `grad` and
the states are of one shape; `step` counts from 1 and is, like `lr`, a tensor of no dims. Where `found_inf` is above 0
everything stays as it was.
"""

from __future__ import annotations

import torch


def adamw(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: torch.Tensor,
    lr: torch.Tensor,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    found_inf: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the new ``(param, exp_avg, exp_avg_sq)``."""
    beta1, beta2 = betas
    # Powers of the betas are near 1: in the count's float32 they would be 1e-7 off.
    step, lr = step.double(), lr.double()
    average = exp_avg + (1 - beta1) * (grad - exp_avg)
    average_sq = beta2 * exp_avg_sq + (1 - beta2) * grad * grad
    denominator = average_sq.sqrt() / (1 - beta2**step).sqrt() + eps
    decayed = param * (1 - lr * weight_decay)
    new = decayed - lr / (1 - beta1**step) * average / denominator
    pairs = ((param, new.to(param.dtype)), (exp_avg, average), (exp_avg_sq, average_sq))
    new, average, average_sq = (_unless(found_inf, old, updated) for old, updated in pairs)
    return new, average, average_sq


def sgd(
    param: torch.Tensor,
    grad: torch.Tensor,
    momentum_buffer: torch.Tensor | None,
    step: torch.Tensor,
    lr: torch.Tensor,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    found_inf: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return the new ``(param,)``, or ``(param, momentum_buffer)`` where there is a buffer."""
    grad = grad + weight_decay * param
    if momentum_buffer is None:
        return (_unless(found_inf, param, (param - lr * grad).to(param.dtype)),)
    # torch's buffer begins as the first gradient, without dampening.
    buffer = torch.where(step <= 1, grad, momentum * momentum_buffer + (1 - dampening) * grad)
    direction = grad + momentum * buffer if nesterov else buffer
    new = _unless(found_inf, param, (param - lr * direction).to(param.dtype))
    return new, _unless(found_inf, momentum_buffer, buffer)


def increment(step: torch.Tensor, *, found_inf: torch.Tensor | None = None) -> torch.Tensor:
    """Return the count of this step from that of the last."""
    return _unless(found_inf, step, step + 1)


def assign(old: torch.Tensor, new: torch.Tensor, *, found_inf: torch.Tensor | None = None) -> torch.Tensor:
    """Return the new value, in the dtype of the old one."""
    return _unless(found_inf, old, new.to(old.dtype, copy=True))


def _unless(found_inf: torch.Tensor | None, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """The new value, or where the update is skipped a copy of the old one."""
    return new if found_inf is None else torch.where(found_inf > 0, old, new)
