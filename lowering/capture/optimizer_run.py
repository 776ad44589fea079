"""
Run an optimizer on small parameters to observe its states and the results that a captured update must reproduce.

Every parameter of the model has a small twin with the same number of dims. All twins take a few steps together, in
float64, with random gradients and a different learning rate in each step.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import nn

from ...ir.not_supported import OTHER_OPTIMIZER
from .calling import build_optimizer
from .captured import CaptureError, ParameterGroup
from .optimizer_step import UpdateForm, optimizer_name, plain_step

RATES = (1.0, 0.7, 1.3, 0.9)
"""The factor of the learning rate in each step."""

_SETTINGS_OF_TORCH = ("params", "lr", "initial_lr", "param_names")
_COUNTED_BY_TORCH = ("_step_count", "_opt_called")


@dataclass(frozen=True)
class ParameterSnapshot:
    """The values of a parameter and its states after a step."""

    parameter: torch.Tensor
    states: Mapping[str, object]


@dataclass(frozen=True)
class SmallRun:
    """
    The observations from the run of an optimizer.

    Args:
        optimizer: a fresh copy of the optimizer, before its first step.
        parameters: the parameters of `optimizer`, by name.
        group_of: parameter -> number of its group.
        begin: parameter -> initial value.
        gradients: the gradients by parameter, for each step.
        snapshots: the snapshots by parameter, for each step.
        forms: parameter -> the observed form of its states.
    """

    optimizer: torch.optim.Optimizer
    parameters: Mapping[str, nn.Parameter]
    group_of: Mapping[str, int]
    begin: Mapping[str, torch.Tensor]
    gradients: Sequence[Mapping[str, torch.Tensor]]
    snapshots: Sequence[Mapping[str, ParameterSnapshot]]
    forms: Mapping[str, UpdateForm]

    def rate(self, parameter: str, step: int) -> float:
        """Return the learning rate of a parameter in a step, counted from 0."""
        return _rate(self.optimizer.param_groups[self.group_of[parameter]], step)


def small_run(
    make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], parameters: Mapping[str, nn.Parameter]
) -> SmallRun:
    """
    Run the optimizer that `make` builds on small twins of parameters.

    Raises:
        CaptureError: the optimizer cannot step on its own, or keeps state that a program cannot hold.
    """
    with torch.random.fork_rng(devices=[]):
        runs = [_OptimizerRun(make, parameters, seed) for seed in (0, 1)]
        untouched = _OptimizerRun(make, parameters, 0)
    runs[0].run(len(RATES))
    runs[1].run(1)
    one, other = runs
    forms = {name: _form(one, other, name) for name in one.snapshots[0]}
    return SmallRun(
        untouched.optimizer, untouched.parameters, one.group_of, untouched.values(), one.gradients, one.snapshots, forms
    )


def small_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a small shape with the dims of `shape`, whose sizes have the same order."""
    order = {size: place for place, size in enumerate(sorted(set(shape)))}
    return tuple(min(size, 4 + 2 * order[size]) for size in shape)


def _rate(group: ParameterGroup, step: int) -> float:
    return (float(group["lr"]) or 1e-2) * RATES[step]


class _OptimizerRun:
    def __init__(
        self, make: Callable[..., torch.optim.Optimizer], parameters: Mapping[str, nn.Parameter], seed: int
    ) -> None:
        # The rate differs between runs, to distinguish a state that starts as the rate from one that starts constant.
        self.scale = 1.0 if seed == 0 else 0.6
        self.generator = torch.Generator().manual_seed(seed)
        self.parameters = {
            name: nn.Parameter(self._drawn(parameter, small_shape(parameter.shape)), parameter.requires_grad)
            for name, parameter in parameters.items()
        }
        self.optimizer = build_optimizer(make, self.parameters)
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.snapshots: list[dict[str, ParameterSnapshot]] = []
        self.group_counts: list[dict[str, float]] = [{} for _ in self.optimizer.param_groups]
        self.first: dict[str, Mapping[str, object]] = {}
        groups = enumerate(self.optimizer.param_groups)
        numbers = {id(each): number for number, group in groups for each in group["params"]}
        trained = ((name, each) for name, each in self.parameters.items() if each.requires_grad)
        self.group_of = {name: numbers[id(each)] for name, each in trained if id(each) in numbers}

    @property
    def name(self) -> str:
        return optimizer_name(self.optimizer)

    def values(self) -> dict[str, torch.Tensor]:
        return {name: self.parameters[name].detach().clone() for name in self.group_of}

    def run(self, steps: int) -> None:
        """Take steps and record their effects."""
        self._refuse_before()
        states = _States()
        for parameter, state in self.optimizer.state.items():
            states[parameter] = state
        self.optimizer.state = states
        groups = [dict(group) for group in self.optimizer.param_groups]
        own = _values_of(vars(self.optimizer))
        function = plain_step(self.optimizer)
        for step in range(steps):
            self._step(function, groups, step)
            self._compare_groups(groups, step)
        if changed := [key for key, value in _values_of(vars(self.optimizer)).items() if own.get(key) != value]:
            self._refuse(f"changes its attribute {changed[0]} from step to step, which is not the state of a parameter")
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        for parameter, state in states.items():
            if id(parameter) not in names:
                self._refuse("keeps a state that does not belong to one parameter")
            self.first[names[id(parameter)]] = state.first

    def _step(self, function: Callable[..., object], groups: Sequence[ParameterGroup], step: int) -> None:
        trained = {name: each for name, each in self.parameters.items() if name in self.group_of}
        gradients = {name: self._drawn(each, each.shape) for name, each in trained.items()}
        for name, gradient in gradients.items():
            self.parameters[name].grad = gradient.clone()
        for group, at_first in zip(self.optimizer.param_groups, groups, strict=True):
            group["lr"] = _rate(at_first, step) * self.scale
        try:
            with torch.no_grad():
                function(self.optimizer)
        except Exception as error:
            self._refuse(f"cannot run step() on its own ({type(error).__name__}: {error})", error)
        self.gradients.append(gradients)
        after = {
            name: ParameterSnapshot(
                self.parameters[name].detach().clone(),
                {key: _copied(value) for key, value in self.optimizer.state.get(self.parameters[name], {}).items()},
            )
            for name in gradients
        }
        self.snapshots.append(after)

    def _compare_groups(self, groups: Sequence[ParameterGroup], step: int) -> None:
        """Record the settings that count steps, and refuse any other change of a setting."""
        for number, (group, at_first) in enumerate(zip(self.optimizer.param_groups, groups, strict=True)):
            for key, value in group.items():
                if key in _SETTINGS_OF_TORCH or _is_same(value, at_first.get(key)):
                    continue
                start = at_first.get(key, 0)
                counts = _is_plain_number(value) and _is_plain_number(start) and value == start + step + 1
                if not counts:
                    self._refuse(f"changes the setting {key!r} of its groups from step to step")
                self.group_counts[number][key] = start

    def _refuse_before(self) -> None:
        """Refuse an optimizer whose step is not a separate update of each parameter."""
        optimizer = self.optimizer
        closure = inspect.signature(plain_step(optimizer)).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            self._refuse("evaluates the model again inside its step (step(closure))")
        for kind in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            if getattr(optimizer, kind, None):
                self._refuse(f"has hooks around its step ({kind.removeprefix('_optimizer_')})")

    def _refuse(self, why: str, error: Exception | None = None) -> None:
        raise CaptureError(
            f"the optimizer {self.name} {why}, so its update cannot be part of a step; {OTHER_OPTIMIZER.instead}"
        ) from error

    def _drawn(self, like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        dtype = torch.complex128 if like.is_complex() else torch.float64
        return torch.randn(tuple(shape), dtype=dtype, generator=self.generator)


class _NotedState(dict[str, object]):
    """The state of a parameter, which records the first value of each entry."""

    def __init__(self, given: Mapping[str, object]) -> None:
        super().__init__()
        self.first: dict[str, object] = {}
        self.update(given)

    def __setitem__(self, key: str, value: object) -> None:
        self.first.setdefault(key, _copied(value))
        super().__setitem__(key, value)

    def setdefault(self, key: str, default: object = None) -> object:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: object, **kwargs: object) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value


class _States(defaultdict[torch.Tensor, Any]):
    """The states of all parameters."""

    def __missing__(self, key: torch.Tensor) -> _NotedState:
        self[key] = {}
        return self[key]

    def __setitem__(self, key: torch.Tensor, value: Mapping[str, object]) -> None:
        super().__setitem__(key, value if isinstance(value, _NotedState) else _NotedState(value))

    def setdefault(self, key: torch.Tensor, default: Mapping[str, object] | None = None) -> _NotedState:
        if key not in self:
            self[key] = default or {}
        return self[key]


def _form(one: _OptimizerRun, other: _OptimizerRun, name: str) -> UpdateForm:
    """Infer the form of a parameter's states from two runs with different numbers."""
    seen = [snapshot[name].states for snapshot in one.snapshots]
    if any(set(states) != set(seen[0]) for states in seen):
        one._refuse("keeps different states in later steps than after the first")
    initial: dict[str, float] = {}
    counts: dict[str, float] = {}
    constants: dict[str, object] = {}
    numbers: set[str] = set()
    for key in seen[0]:
        values = [states[key] for states in seen]
        if all(value is None or isinstance(value, bool | str) for value in values) and len(set(values)) == 1:
            constants[key] = values[0]
            continue
        if not all(isinstance(value, torch.Tensor) or _is_plain_number(value) for value in values):
            one._refuse(f"keeps {type(values[0]).__name__} {key!r} in the state of a parameter")
        if not isinstance(values[0], torch.Tensor):
            numbers.add(key)
        if (start := _counts_from(values)) is not None:
            counts[key] = start
        else:
            firsts = [_uniform(run.first.get(name, {}).get(key)) for run in (one, other)]
            initial[key] = firsts[0] if firsts[0] is not None and firsts[0] == firsts[1] else 0.0
    return UpdateForm(initial, counts, one.group_counts[one.group_of[name]], constants, frozenset(numbers))


def _counts_from(values: Sequence[Any]) -> float | None:
    """Return the value of an entry before the first step if the entry counts steps, else None."""
    if any(isinstance(value, torch.Tensor) and value.dim() for value in values):
        return None
    counts = [float(value) for value in values]
    start = counts[0] - 1
    return start if all(value == start + 1 + place for place, value in enumerate(counts)) else None


def _uniform(value: object) -> float | None:
    """Return the common value of all elements, or None if they differ."""
    if _is_plain_number(value):
        return float(value)
    if not isinstance(value, torch.Tensor) or value.is_complex() or not value.numel():
        return None
    first = value.reshape(-1)[0].item()
    return float(first) if math.isfinite(first) and bool((value == first).all()) else None


def _copied(value: object) -> object:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _is_plain_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one is other or (type(one) is type(other) and torch.equal(one, other))
    return not isinstance(one, torch.Tensor) and not isinstance(other, torch.Tensor) and bool(one == other)


def _values_of(attributes: Mapping[str, object]) -> dict[str, object]:
    """Return the attributes that are plain values, with tensors as lists."""
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in attributes.items()
        if isinstance(value, bool | int | float | str | torch.Tensor) and name not in _COUNTED_BY_TORCH
    }
