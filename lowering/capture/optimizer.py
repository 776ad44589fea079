"""
Read the settings and updates of an optimizer that is built on fake parameters.

SGD, Adam and AdamW have fused ops for all their settings. The updates of any other optimizer are captured from its
own code (`update`) and compared with its own steps on small parameters (`check_update`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...dialects.compute import plain_attribute
from .calling import build_optimizer
from .captured import CapturedUpdate, CaptureError, GroupSpec, OptimizerSpec, ParameterGroup
from .check_update import checked_forms
from .optimizer_run import small_run
from .update import UpdateTracer, optimizer_name

_RUN_TIME = ("params", "lr", "initial_lr", "param_names", "foreach", "fused", "capturable", "differentiable")
"""Settings that are run-time inputs, or that select an implementation in torch without an effect on the result."""


def read_optimizer(
    make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    parameters: Mapping[str, nn.Parameter],
    mode: FakeTensorMode,
) -> OptimizerSpec:
    """
    Return the settings and updates of the optimizer that `make` builds.

    Args:
        parameters: every parameter by first name, tied parameters once; they may be fake.
        mode: the mode of the fake tensors.

    Raises:
        CaptureError: the optimizer cannot be captured, or leaves out a parameter.
    """
    optimizer = build_optimizer(make, parameters)
    groups: list[dict[str, Any]] = optimizer.param_groups
    numbers = {id(parameter): number for number, group in enumerate(groups) for parameter in group["params"]}
    for name, parameter in parameters.items():
        if parameter.requires_grad and id(parameter) not in numbers:
            raise CaptureError(
                f"{optimizer_name(optimizer)} leaves out the parameter {name!r}, which requires a gradient; pass it "
                "too, or freeze it with requires_grad_(False)"
            )
    for group in groups:
        if group.get("differentiable"):
            raise CaptureError(
                f"{optimizer_name(optimizer)} has differentiable=True, which is not supported; use differentiable=False"
            )
        if "lr" not in group:
            raise CaptureError(f"{optimizer_name(optimizer)} has no 'lr' in its groups; name its learning rate 'lr'")
    members = {name: numbers[id(parameter)] for name, parameter in parameters.items() if id(parameter) in numbers}
    shown = members if len(groups) > 1 else {}
    if (kind := _kind(optimizer)) is not None:
        return OptimizerSpec(kind, tuple(map(_READERS[kind], groups)), shown)
    updates = _captured(make, optimizer, parameters, members, mode)
    return OptimizerSpec(optimizer_name(optimizer), tuple(map(_settings, groups)), shown, updates)


def _captured(
    make: Callable[..., torch.optim.Optimizer],
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    members: Mapping[str, int],
    mode: FakeTensorMode,
) -> dict[str, CapturedUpdate]:
    """Return the update of each parameter, captured once for parameters of equal group, shape, dtype and form."""
    run = small_run(make, parameters)
    forms = checked_forms(run, UpdateTracer(run.optimizer, mode))
    tracer = UpdateTracer(optimizer, mode)
    captured: dict[tuple[object, ...], CapturedUpdate] = {}
    updates: dict[str, CapturedUpdate] = {}
    for name, form in forms.items():
        parameter, number = parameters[name], members[name]
        key = (number, tuple(parameter.shape), parameter.dtype, repr(form))
        if key not in captured:
            captured[key] = tracer.trace(optimizer.param_groups[number], parameter.shape, parameter.dtype, form)
        updates[name] = captured[key]
    return updates


def _settings(group: ParameterGroup) -> GroupSpec:
    hyper: dict[str, object] = {}
    for name, value in group.items():
        if name in _RUN_TIME or value is None:
            continue
        try:
            plain_attribute(value)
        except TypeError:
            continue
        hyper[name] = value
    return GroupSpec(float(group["lr"]), hyper)


def _read_sgd(group: ParameterGroup) -> GroupSpec:
    return GroupSpec(
        lr=float(group["lr"]),
        hyper={key: group[key] for key in ("momentum", "dampening", "weight_decay", "nesterov")} | _set(group),
        states=("momentum_buffer",) if group["momentum"] else (),
    )


def _read_adam(group: ParameterGroup) -> GroupSpec:
    beta1, beta2 = (float(beta) for beta in group["betas"])
    settings = {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "weight_decay": group["weight_decay"]}
    states = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
    return GroupSpec(float(group["lr"]), settings | _set(group), states)


def _set(group: ParameterGroup) -> dict[str, bool]:
    """Return the optional flags that are on."""
    return {name: True for name in ("amsgrad", "maximize") if group.get(name)}


def _kind(optimizer: torch.optim.Optimizer) -> str | None:
    """Return the kind of fused update that implements the optimizer, or None if its code must be captured."""
    if type(optimizer) is torch.optim.SGD:
        return "sgd"
    if type(optimizer) is torch.optim.AdamW:
        return "adamw"
    if type(optimizer) is not torch.optim.Adam:
        return None
    groups = (group for group in optimizer.param_groups if group["weight_decay"])
    decoupled = {bool(group.get("decoupled_weight_decay")) for group in groups}
    # If groups of both kinds exist, a single kind of fused update cannot serve them.
    return None if len(decoupled) > 1 else "adamw" if True in decoupled else "adam"


_READERS: dict[str, Callable[[ParameterGroup], GroupSpec]] = {
    "sgd": _read_sgd,
    "adam": _read_adam,
    "adamw": _read_adam,
}
"""Kind of fused update -> the function that reads a group."""
