"""Read an optimizer's settings by making one on fake parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .captured import CaptureError, OptimizerSpec

_REFUSED = {
    "maximize": "negate the loss instead",
    "amsgrad": "use amsgrad=False",
    "differentiable": "use differentiable=False",
}
"""Flags that change the update's mathematics (or its graph), and what to do without them."""


def read_optimizer(
    make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], parameters: Mapping[str, nn.Parameter]
) -> OptimizerSpec:
    """
    The update that `make` describes.

    Args:
        parameters: every parameter by its first name, ties once; fake ones will do.

    Raises:
        CaptureError: an optimizer, a flag or a grouping of parameters that is not supported.
    """
    optimizer = make(iter(parameters.values()))
    reader = _READERS.get(type(optimizer))
    if reader is None:
        known = ", ".join(f"torch.optim.{cls.__name__}" for cls in _READERS)
        raise CaptureError(f"the optimizer {_name(optimizer)} is not supported; use one of {known}")
    group = _only_group(optimizer)
    _check_covers(optimizer, group["params"], parameters)
    for flag, advice in _REFUSED.items():
        if group.get(flag):
            raise CaptureError(f"{_name(optimizer)} has {flag}=True, which is not supported; {advice}")
    return reader(group)


def _name(optimizer: torch.optim.Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__name__}"


def _only_group(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    groups = optimizer.param_groups
    if len(groups) != 1:
        raise CaptureError(
            f"{_name(optimizer)} has {len(groups)} parameter groups; one update for all parameters is "
            "supported, so pass the parameters as one list"
        )
    return groups[0]


def _check_covers(
    optimizer: torch.optim.Optimizer, given: list[nn.Parameter], parameters: Mapping[str, nn.Parameter]
) -> None:
    covered = {id(parameter) for parameter in given}
    for name, parameter in parameters.items():
        if parameter.requires_grad and id(parameter) not in covered:
            raise CaptureError(
                f"{_name(optimizer)} leaves out the parameter {name!r}, which requires a gradient; pass it "
                "too, or freeze it with requires_grad_(False)"
            )


def _read_sgd(group: dict[str, Any]) -> OptimizerSpec:
    if group["momentum"] and group["dampening"]:
        raise CaptureError(
            f"torch.optim.SGD has dampening={group['dampening']}, which torch leaves out of the first step "
            "only; use dampening=0"
        )
    return OptimizerSpec(
        kind="sgd",
        lr=float(group["lr"]),
        hyper={key: group[key] for key in ("momentum", "dampening", "weight_decay", "nesterov")},
        states=("momentum_buffer",) if group["momentum"] else (),
    )


def _read_adamw(group: dict[str, Any]) -> OptimizerSpec:
    beta1, beta2 = (float(beta) for beta in group["betas"])
    return OptimizerSpec(
        kind="adamw",
        lr=float(group["lr"]),
        hyper={"beta1": beta1, "beta2": beta2, "eps": group["eps"], "weight_decay": group["weight_decay"]},
        states=("exp_avg", "exp_avg_sq"),
    )


def _read_adam(group: dict[str, Any]) -> OptimizerSpec:
    if group["weight_decay"] and not group.get("decoupled_weight_decay"):
        raise CaptureError(
            f"torch.optim.Adam has weight_decay={group['weight_decay']}, which it adds to the gradient; use "
            "torch.optim.AdamW, which decays the weights directly, or weight_decay=0"
        )
    return _read_adamw(group)


_READERS: dict[type[torch.optim.Optimizer], Callable[[dict[str, Any]], OptimizerSpec]] = {
    torch.optim.SGD: _read_sgd,
    torch.optim.AdamW: _read_adamw,
    torch.optim.Adam: _read_adam,
}
