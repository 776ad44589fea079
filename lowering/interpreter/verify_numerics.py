"""Check that a pass preserves the results of a program, by running both modules on the same random inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.utils.exceptions import DiagnosticException

from ...dialects import train
from ...dialects.compute import python_value
from ...dialects.step import argument_attributes, result_attributes
from .interpreter import interpret
from .random_inputs import random_inputs

TOLERANCE = 1e-8
"""The relative tolerance. All values are computed in float64, where the order of a sum changes about 1e-13."""

_FLOOR = 1e-3
"""The least reference size of a result, as a share of all results of its kind: some gradients are only noise."""

_NOISE = 1e-13
"""The absolute tolerance, for values that should be zero."""


class NumericsError(DiagnosticException):
    """A pass changed the results of a program; the message names a result and the difference."""


@dataclass(frozen=True)
class _ComparedResult:
    """A result of a function: its key in both modules, its name for messages, and its kind for relative sizes."""

    key: str
    name: str
    kind: str
    value: torch.Tensor


def check_pass(before: ModuleOp, after: ModuleOp, pass_name: str, seed: int = 0) -> None:
    """
    Run every function of both modules on random inputs and compare the results.

    Arguments and results are matched by role, or by position if they have none. A pass may duplicate a role (a batch
    item for each stage that reads it). Results are equal if ``|x - ref| <= tol * max(|ref|, 1e-3 * |all refs of the
    kind|)`` in the 2-norm.

    Raises:
        NumericsError: a result differs, or the function is missing or has other arguments or results.
        InterpreterError: a module cannot be run.
    """
    left = {func.sym_name.data: func for func in _functions(after)}
    for func in _functions(before):
        name = func.sym_name.data
        if (counterpart := left.get(name)) is None:
            raise NumericsError(f"'{pass_name}' left no function @{name} to compare with")
        keys = _argument_keys(func)
        inputs = dict(zip(keys, map(_widened, random_inputs(func, seed)), strict=True))
        expected = _results(before, func, [inputs[key] for key in keys], check_replicas=False)
        by_key = {old.key: old for old in expected}
        changed = f"'{pass_name}' changed the type of @{name}"
        arguments = [_of_key(inputs, key, f"{changed}: it had no argument") for key in _argument_keys(counterpart)]
        results = _results(after, counterpart, arguments, check_replicas=True)
        if missing := by_key.keys() - {new.key for new in results}:
            raise NumericsError(f"{changed}: it lacks {by_key[min(missing)].name}")
        for new in results:
            old = _of_key(by_key, new.key, f"{changed}: it had no result")
            _compare(old, new.value, expected, f"after '{pass_name}' {old.name} of @{name}")


_Found = TypeVar("_Found")


def _of_key(known: Mapping[str, _Found], key: str, otherwise: str) -> _Found:
    if key not in known:
        raise NumericsError(f"{otherwise} {key}")
    return known[key]


def _argument_keys(func: FuncOp) -> list[str]:
    """Return, for each argument, a key of its role (or its position) and its type."""
    keys: list[str] = []
    for argument, roles in zip(func.body.block.args, argument_attributes(func), strict=True):
        role = next((role for role in train.ROLES if role in roles), None)
        keys.append(f"{role} {roles[role]} : {argument.type}" if role else f"{argument.index} : {argument.type}")
    return keys


def _result_key(func: FuncOp, index: int) -> str:
    """Return a key of a result's role (or its position) and its type."""
    roles, value_type = result_attributes(func)[index], func.function_type.outputs.data[index]
    if train.UPDATES in roles:
        return f"{train.UPDATES} {_argument_keys(func)[python_value(roles[train.UPDATES])]}"
    role = next((role for role in (train.LOSS, train.GRAD, train.METRIC, train.OUTPUT) if role in roles), None)
    return f"{role} {roles[role]} : {value_type}" if role else f"{index} : {value_type}"


def _functions(module: ModuleOp) -> list[FuncOp]:
    return [op for op in module.ops if isinstance(op, FuncOp) and not op.is_declaration]


def _widened(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.float64) if value.is_floating_point() else value


def _results(
    module: ModuleOp, func: FuncOp, inputs: list[torch.Tensor], *, check_replicas: bool
) -> list[_ComparedResult]:
    values = interpret(
        module, inputs, function=func.sym_name.data, check_replicas=check_replicas, precision=torch.float64
    )
    return [_ComparedResult(_result_key(func, i), *_named(func, i), value) for i, value in enumerate(values)]


def _named(func: FuncOp, index: int) -> tuple[str, str]:
    """Return the name of a result for messages, and its kind."""
    roles = result_attributes(func)[index]
    if train.LOSS in roles:
        return "the loss", "loss"
    if train.GRAD in roles:
        return f"the gradient of '{python_value(roles[train.GRAD])}'", "gradient"
    if train.METRIC in roles:
        return f"the metric '{python_value(roles[train.METRIC])}'", "metric"
    if train.OUTPUT in roles:
        return f"the output {python_value(roles[train.OUTPUT])}", "output"
    if train.UPDATES in roles:
        argument = func.body.block.args[python_value(roles[train.UPDATES])]
        kinds = [role for role in argument_attributes(func)[argument.index] if role in train.ROLES]
        return f"the new value of %{argument.name_hint or argument.index}", next(iter(kinds), "")
    last = func.body.block.last_op
    hint = last.arguments[index].name_hint if isinstance(last, ReturnOp) else None
    return f"result {index}" + (f" (%{hint})" if hint else ""), f"result {index}"


def _compare(old: _ComparedResult, found: torch.Tensor, expected: list[_ComparedResult], what: str) -> None:
    # Equal infinities and NaNs count as equal, other ones as infinitely far.
    same = (found == old.value) | (found.isnan() & old.value.isnan())
    difference = torch.where(same, 0.0, found.to(torch.float64) - old.value.to(torch.float64))
    distance = difference.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf).norm().item()
    size = _size(old.value)
    of_kind = sum(_size(other.value) ** 2 for other in expected if other.kind == old.kind) ** 0.5
    if distance > TOLERANCE * max(size, _FLOOR * of_kind) + _NOISE:
        raise NumericsError(f"{what} differs: |difference| = {distance:.3g}, |value| = {size:.3g}")


def _size(value: torch.Tensor) -> float:
    return value[value.isfinite()].to(torch.float64).norm().item()
