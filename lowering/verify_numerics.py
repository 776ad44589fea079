"""Whether a pass kept what a program computes: before and after run on the same random inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.utils.exceptions import DiagnosticException

from ..dialects import train
from ..dialects.compute import python_value
from .interpreter import argument_attributes, interpret, result_attributes
from .random_inputs import random_inputs

TOLERANCE = 1e-8
"""Of float64, in which everything is computed; sums in another order differ by 1e-13 or so."""

_FLOOR = 1e-3
"""Some gradients are zero but for noise: no result counts as smaller than this share of all of its kind."""

_NOISE = 1e-13
"""What a value that should be zero may come to."""


class NumericsError(DiagnosticException):
    """A pass changed what a program computes; the message names the result and says by how much."""


@dataclass(frozen=True)
class _Result:
    """One result of a function: what to call it, and its kind, within which sizes compare."""

    name: str
    kind: str
    value: torch.Tensor


def check_pass(before: ModuleOp, after: ModuleOp, pass_name: str, seed: int = 0) -> None:
    """
    Run every function of both modules on random inputs and compare the results.

    Equal is ``|x - ref| <= tol * max(|ref|, 1e-3 * |all refs of the kind|)`` in the 2-norm.

    Raises:
        NumericsError: a result differs, or the function is gone or has other arguments or results.
        InterpreterError: one of the modules cannot be run.
    """
    left = {func.sym_name.data: func for func in _functions(after)}
    for func in _functions(before):
        name = func.sym_name.data
        if (found := left.get(name)) is None:
            raise NumericsError(f"'{pass_name}' left no function @{name} to compare with")
        if found.function_type != func.function_type:
            types = f"from {func.function_type} to {found.function_type}"
            raise NumericsError(f"'{pass_name}' changed the type of @{name} {types}")
        inputs = [_widened(value) for value in random_inputs(func, seed)]
        expected = _results(before, func, inputs, check_replicas=False)
        for old, new in zip(expected, _results(after, found, inputs, check_replicas=True), strict=True):
            _compare(old, new.value, expected, f"after '{pass_name}' {old.name} of @{name}")


def _functions(module: ModuleOp) -> list[FuncOp]:
    return [op for op in module.ops if isinstance(op, FuncOp) and not op.is_declaration]


def _widened(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.float64) if value.is_floating_point() else value


def _results(module: ModuleOp, func: FuncOp, inputs: list[torch.Tensor], *, check_replicas: bool) -> list[_Result]:
    values = interpret(
        module, inputs, function=func.sym_name.data, check_replicas=check_replicas, precision=torch.float64
    )
    return [_Result(*_named(func, index), value) for index, value in enumerate(values)]


def _named(func: FuncOp, index: int) -> tuple[str, str]:
    """What to call a result, and its kind."""
    roles = result_attributes(func)[index]
    if train.LOSS in roles:
        return "the loss", "loss"
    if train.GRAD in roles:
        return f"the gradient of '{python_value(roles[train.GRAD])}'", "gradient"
    if train.UPDATES in roles:
        argument = func.body.block.args[python_value(roles[train.UPDATES])]
        kinds = [role for role in argument_attributes(func)[argument.index] if role in train.ROLES]
        return f"the new value of %{argument.name_hint or argument.index}", next(iter(kinds), "")
    last = func.body.block.last_op
    hint = last.arguments[index].name_hint if isinstance(last, ReturnOp) else None
    return f"result {index}" + (f" (%{hint})" if hint else ""), f"result {index}"


def _compare(old: _Result, found: torch.Tensor, expected: list[_Result], what: str) -> None:
    distance, size = _distance(found, old.value), _size(old.value)
    of_kind = sum(_size(other.value) ** 2 for other in expected if other.kind == old.kind) ** 0.5
    if distance > TOLERANCE * max(size, _FLOOR * of_kind) + _NOISE:
        raise NumericsError(f"{what} differs: |difference| = {distance:.3g}, |value| = {size:.3g}")


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The 2-norm of the difference: none where both are NaN or the same infinity, infinite where one is."""
    same = (found == expected) | (found.isnan() & expected.isnan())
    difference = torch.where(same, 0.0, found.to(torch.float64) - expected.to(torch.float64))
    return difference.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf).norm().item()


def _size(value: torch.Tensor) -> float:
    """The 2-norm of the finite elements."""
    return value[value.isfinite()].to(torch.float64).norm().item()
