"""
Define the optimizer's updates of one parameter as pure functions; the runtime has in-place versions.

The formulas are the single-tensor versions of `torch.optim.Adam`, `AdamW` and `SGD`. `param`, `grad` and the states
have the same shape; `step` counts from 1; `step` and `lr` are 0-d tensors. If `found_inf` is above 0, all values stay
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .fused_op import Definition


def adam(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: torch.Tensor,
    lr: torch.Tensor,
    *,
    max_exp_avg_sq: torch.Tensor | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    maximize: bool = False,
    found_inf: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return the new ``(param, exp_avg, exp_avg_sq)``, and the new maximum if it is tracked."""
    grad = (-grad if maximize else grad) + weight_decay * param
    states, numbers = (exp_avg, exp_avg_sq, max_exp_avg_sq), (step.double(), lr.double())
    return _adam(param, param, grad, states, numbers, betas, eps, found_inf)


def adamw(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: torch.Tensor,
    lr: torch.Tensor,
    *,
    max_exp_avg_sq: torch.Tensor | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    amsgrad: bool = False,
    maximize: bool = False,
    found_inf: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return the new ``(param, exp_avg, exp_avg_sq)``, and the new maximum if it is tracked."""
    grad, lr = -grad if maximize else grad, lr.double()
    decayed = param * (1 - lr * weight_decay)
    states, numbers = (exp_avg, exp_avg_sq, max_exp_avg_sq), (step.double(), lr)
    return _adam(param, decayed, grad, states, numbers, betas, eps, found_inf)


def _adam(
    param: torch.Tensor,
    decayed: torch.Tensor,
    grad: torch.Tensor,
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    numbers: tuple[torch.Tensor, torch.Tensor],
    betas: tuple[float, float],
    eps: float,
    found_inf: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """
    Compute both kinds of Adam after their weight decay.

    Powers of the betas are near 1, and float32 would lose 1e-7 of precision, so `numbers` (step and rate) are float64.
    """
    if param.is_complex():
        # Real and imaginary parts are squared separately.
        param, decayed, grad = (torch.view_as_real(value) for value in (param, decayed, grad.resolve_conj()))
        one, two, three = states
        largest = torch.view_as_real(three) if three is not None else None
        real = (torch.view_as_real(one), torch.view_as_real(two), largest)
        new = _adam(param, decayed, grad, real, numbers, betas, eps, found_inf)
        return tuple(map(torch.view_as_complex, new))
    (exp_avg, exp_avg_sq, max_exp_avg_sq), (step, lr), (beta1, beta2) = states, numbers, betas
    average = exp_avg + (1 - beta1) * (grad - exp_avg)
    average_sq = beta2 * exp_avg_sq + (1 - beta2) * grad * grad
    largest = average_sq if max_exp_avg_sq is None else torch.maximum(max_exp_avg_sq, average_sq)
    denominator = largest.sqrt() / (1 - beta2**step).sqrt() + eps
    new = (decayed - lr / (1 - beta1**step) * average / denominator).to(param.dtype)
    pairs = [(param, new), (exp_avg, average), (exp_avg_sq, average_sq)]
    if max_exp_avg_sq is not None:
        pairs.append((max_exp_avg_sq, largest))
    return tuple(_unless(found_inf, old, updated) for old, updated in pairs)


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
    maximize: bool = False,
    found_inf: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return the new ``(param,)``, or ``(param, momentum_buffer)`` if a buffer is given."""
    grad = (-grad if maximize else grad) + weight_decay * param
    if momentum_buffer is None:
        return (_unless(found_inf, param, (param - lr * grad).to(param.dtype)),)
    # torch initializes the buffer with the first gradient, without dampening.
    buffer = torch.where(step <= 1, grad, momentum * momentum_buffer + (1 - dampening) * grad)
    direction = grad + momentum * buffer if nesterov else buffer
    new = _unless(found_inf, param, (param - lr * direction).to(param.dtype))
    return new, _unless(found_inf, momentum_buffer, buffer)


def increment(step: torch.Tensor, *, found_inf: torch.Tensor | None = None) -> torch.Tensor:
    """Return the count of this step, given the count of the previous step."""
    return _unless(found_inf, step, step + 1)


def assign(old: torch.Tensor, new: torch.Tensor, *, found_inf: torch.Tensor | None = None) -> torch.Tensor:
    """Return the new value, in the dtype of the old one."""
    return _unless(found_inf, old, new.to(old.dtype, copy=True))


def _unless(found_inf: torch.Tensor | None, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return the new value, or a copy of the old value if the update is skipped."""
    return new if found_inf is None else torch.where(found_inf > 0, old, new)


def foreach(function: str, first: Sequence[torch.Tensor], *others: object, **options: object) -> list[torch.Tensor]:
    """Return the result of `function` for each of several tensors, in order."""
    call: Callable[..., torch.Tensor] = assign if function == "copy" else getattr(torch, function)
    given = ([_of_member(value, number) for value in others] for number in range(len(first)))
    return [call(tensor, *arguments, **options) for tensor, arguments in zip(first, given, strict=True)]


def _of_member(given: object, number: int) -> object:
    """Return a member of a list of tensors; return other arguments, such as `betas`, unchanged."""
    return given[number] if isinstance(given, list) and isinstance(given[0], torch.Tensor) else given


def sum_of_squares(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of the squares of all elements; narrow dtypes are summed in float32."""
    wide = (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor for tensor in tensors)
    return torch.stack([tensor.square().sum() for tensor in wide]).sum()


def joined(update: Callable[..., tuple[torch.Tensor, ...]]) -> Callable[..., list[torch.Tensor]]:
    """Return the update of several parameters, given the update of one; it returns parameters, then kinds of states."""

    def of_all(params: Sequence[torch.Tensor], *others: object, **settings: object) -> list[torch.Tensor]:
        updated: list[tuple[torch.Tensor, ...]] = []
        for number, param in enumerate(params):
            positional = (_of_member(each, number) for each in others)
            named = {name: _of_member(each, number) for name, each in settings.items()}
            updated.append(update(param, *positional, **named))
        return [value for kind in zip(*updated, strict=True) for value in kind]

    return of_all


FUNCTIONS: dict[str, Definition] = {
    "adam_": adam,
    "adamw_": adamw,
    "sgd_": sgd,
    "joined_adam_": joined(adam),
    "joined_adamw_": joined(adamw),
    "joined_sgd_": joined(sgd),
    "foreach": foreach,
    "foreach_": foreach,
    "sum_of_squares": sum_of_squares,
    "increment": increment,
    "assign_": assign,
}
"""Name of the runtime's function -> definition; a trailing underscore marks functions that write to their operands."""
