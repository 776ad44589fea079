"""Run one step of an optimizer's own code for one parameter, on given tensors."""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .captured import ParameterGroup
from .numbers import Branches, number, numbers_as_tensors

WRAPPERS = ("torch/optim/optimizer.py", "torch/utils/_contextlib.py")
"""Files whose functions only wrap an optimizer's step, without an effect on its result."""

GROUP = "group: "
"""The prefix that marks the counts of a group among the states after a step."""


@dataclass(frozen=True)
class UpdateForm:
    """
    The form of a parameter's update, as observed in a run of its optimizer.

    Args:
        initial: state that the graph keeps -> value of its elements before the first step.
        counts: state that counts steps -> its initial value.
        group_counts: group setting that counts steps -> its initial value.
        constants: states that are not tensors and never change.
        numbers: states that are Python numbers.
        first_apart: whether the first step, which creates the states, has a separate graph.
    """

    initial: Mapping[str, float] = field(default_factory=dict[str, float])
    counts: Mapping[str, float] = field(default_factory=dict[str, float])
    group_counts: Mapping[str, float] = field(default_factory=dict[str, float])
    constants: Mapping[str, object] = field(default_factory=dict[str, object])
    numbers: frozenset[str] = frozenset()
    first_apart: bool = False

    @property
    def counters(self) -> dict[str, float]:
        """The initial values of all counts of steps, by their names among the states after a step."""
        return {**self.counts, **{f"{GROUP}{name}": start for name, start in self.group_counts.items()}}


@dataclass(frozen=True)
class UpdateInputs:
    """The inputs of a step; `count` is the number of previous steps."""

    param: torch.Tensor
    grad: torch.Tensor
    states: Sequence[torch.Tensor]
    count: torch.Tensor
    rate: torch.Tensor

    @staticmethod
    def of(values: Sequence[torch.Tensor]) -> UpdateInputs:
        """Name the inputs of a graph, which are in the order of the fields."""
        param, grad, *states, count, rate = values
        return UpdateInputs(param, grad, states, count, rate)


def optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    """Return the full name of the optimizer's class."""
    return f"{type(optimizer).__module__}.{type(optimizer).__name__}"


def plain_step(optimizer: torch.optim.Optimizer) -> Callable[[torch.optim.Optimizer], object]:
    """Return the `step` of the optimizer's class without torch's profiling wrappers."""
    step: Any = type(optimizer).step
    while hasattr(step, "__wrapped__") and inspect.isfunction(step) and step.__code__.co_filename.endswith(WRAPPERS):
        step = getattr(step, "__wrapped__")
    return step


class OneStep:
    """
    The update of parameters of one form in a group.

    Args:
        optimizer: the optimizer, which is not modified.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, group: ParameterGroup, form: UpdateForm) -> None:
        self.optimizer, self.group, self.form = optimizer, group, form
        self._step = plain_step(optimizer)

    def first(self, given: UpdateInputs, branches: Branches) -> dict[str, torch.Tensor]:
        """Run the first step, which creates the states and updates the parameter in place; return the states."""
        after = self._run(given, self._made_before(given.param), branches)
        return {name: _tensor(value) for name, value in after.items() if name not in self.form.constants}

    def later(self, given: UpdateInputs, names: Sequence[str], branches: Branches) -> dict[str, torch.Tensor]:
        """
        Run a later step, which updates the parameter in place, and return the new states.

        Args:
            names: the names of the states in `given`, in order.
        """
        form = self.form
        counted = {name: _from(given.count, start) for name, start in form.counts.items()}
        states = {**counted, **dict(zip(names, given.states, strict=True))}
        states = {name: number(value) if name in form.numbers else value for name, value in states.items()}
        after = self._run(given, {**form.constants, **states}, branches)
        expected = {*states, *form.constants, *(f"{GROUP}{name}" for name in form.group_counts)}
        if set(after) != expected:
            different = ", ".join(map(repr, sorted(set(after) ^ expected)))
            raise RuntimeError(f"it keeps the states {different} in some steps and not in others")
        for name, value in form.constants.items():
            if after[name] is not value and after[name] != value:
                raise RuntimeError(f"it changes its state {name!r}, which is not a number, in some step")
        return {name: _tensor(value) for name, value in after.items() if name not in form.constants}

    def _run(self, given: UpdateInputs, state: Mapping[str, object] | None, branches: Branches) -> dict[str, Any]:
        settings = {"lr": number(given.rate.clone()), "foreach": False, "fused": False}
        settings_now = {name: value for name, value in settings.items() if name in self.group}
        settings_now |= {name: number(_from(given.count, at)) for name, at in self.form.group_counts.items()}
        group = {**self.group, **settings_now, "params": [given.param]}
        # A copy of the optimizer with this group only and without state.
        alone = object.__new__(type(self.optimizer))
        for name, value in vars(self.optimizer).items():
            vars(alone)[name] = copy.copy(value) if isinstance(value, dict | list | set) else value
        alone.param_groups = [dict(group)]
        alone.state = defaultdict(dict)
        given.param.grad = given.grad
        if state is not None:
            alone.state[given.param] = dict(state)
        with torch.no_grad(), numbers_as_tensors(branches):
            self._step(alone)
        (after,) = alone.param_groups
        for name, value in after.items():
            if name not in self.form.group_counts and value is not group.get(name):
                raise RuntimeError(f"it changes the setting {name!r} of its groups")
        counted = {f"{GROUP}{name}": after[name] for name in self.form.group_counts}
        return {**alone.state.get(given.param, {}), **counted}

    def _made_before(self, param: torch.Tensor) -> dict[str, object] | None:
        """Return the initial state of a parameter of this shape in the new optimizer, or None."""
        alike = (state for other, state in self.optimizer.state.items() if other.shape == param.shape)
        if (state_found := next(alike, None)) is None:
            return None
        return {
            name: torch.empty(value.shape, dtype=value.dtype) if isinstance(value, torch.Tensor) else value
            for name, value in state_found.items()
        }


def _from(count: torch.Tensor, start: float) -> torch.Tensor:
    """Return a count that was `start` before the first step."""
    return count.double() + start if start else count.double()


def _tensor(value: torch.Tensor | float) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=torch.float64)
