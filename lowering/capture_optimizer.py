"""Read an optimizer's settings by making one on fake parameters."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import nn

from .calling import build_optimizer
from .captured import CaptureError, GroupSpec, OptimizerSpec

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
        CaptureError: an optimizer or a flag that is not supported, or a parameter that it leaves out.
    """
    optimizer = build_optimizer(make, parameters)
    reader = _READERS.get(type(optimizer))
    if reader is None:
        known = ", ".join(f"torch.optim.{cls.__name__}" for cls in _READERS)
        raise CaptureError(f"the optimizer {_name(optimizer)} is not supported; use one of {known}")
    kind, read = reader
    groups: list[dict[str, Any]] = optimizer.param_groups
    numbers = {id(parameter): number for number, group in enumerate(groups) for parameter in group["params"]}
    _check_covers(optimizer, numbers, parameters)
    for group in groups:
        for flag, advice in _REFUSED.items():
            if group.get(flag):
                raise CaptureError(f"{_name(optimizer)} has {flag}=True, which is not supported; {advice}")
    members = {name: numbers[id(parameter)] for name, parameter in parameters.items() if id(parameter) in numbers}
    return OptimizerSpec(kind, tuple(map(read, groups)), members if len(groups) > 1 else {})


def _name(optimizer: torch.optim.Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__name__}"


def _check_covers(
    optimizer: torch.optim.Optimizer, covered: Container[int], parameters: Mapping[str, nn.Parameter]
) -> None:
    for name, parameter in parameters.items():
        if parameter.requires_grad and id(parameter) not in covered:
            raise CaptureError(
                f"{_name(optimizer)} leaves out the parameter {name!r}, which requires a gradient; pass it "
                "too, or freeze it with requires_grad_(False)"
            )


def _read_sgd(group: dict[str, Any]) -> GroupSpec:
    if group["momentum"] and group["dampening"]:
        raise CaptureError(
            f"torch.optim.SGD has dampening={group['dampening']}, which torch leaves out of the first step "
            "only; use dampening=0"
        )
    return GroupSpec(
        lr=float(group["lr"]),
        hyper={key: group[key] for key in ("momentum", "dampening", "weight_decay", "nesterov")},
        states=("momentum_buffer",) if group["momentum"] else (),
    )


def _read_adamw(group: dict[str, Any]) -> GroupSpec:
    beta1, beta2 = (float(beta) for beta in group["betas"])
    return GroupSpec(
        lr=float(group["lr"]),
        hyper={"beta1": beta1, "beta2": beta2, "eps": group["eps"], "weight_decay": group["weight_decay"]},
        states=("exp_avg", "exp_avg_sq"),
    )


def _read_adam(group: dict[str, Any]) -> GroupSpec:
    if group["weight_decay"] and not group.get("decoupled_weight_decay"):
        raise CaptureError(
            f"torch.optim.Adam has weight_decay={group['weight_decay']}, which it adds to the gradient; use "
            "torch.optim.AdamW, which decays the weights directly, or weight_decay=0"
        )
    return _read_adamw(group)


_READERS: dict[
    type[torch.optim.Optimizer], tuple[Literal["sgd", "adamw"], Callable[[dict[str, Any]], GroupSpec]]
] = {
    torch.optim.SGD: ("sgd", _read_sgd),
    torch.optim.AdamW: ("adamw", _read_adamw),
    torch.optim.Adam: ("adamw", _read_adam),
}
"""By class, the kind of its updates, and what reads one of its groups."""
