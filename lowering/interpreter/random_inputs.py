"""Draw random inputs of a step function, according to the roles of its arguments."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import VerifyException

from ...dialects import train
from ...dialects.compute import dtype_of, python_value, shape_of
from ...dialects.step import argument_attributes
from ..calls.dtypes import torch_dtype
from .errors import value_text

RANGE = "train.range"
"""The attribute with the half-open range of an integer argument, by default `[0, 2)`."""

VALUE = "train.value"
_LEARNING_RATE = 1e-2
_SEED = 5
_IGNORED_SHARE = 0.25
_SIGNED = ("exp_avg", "momentum_buffer")
"""Names of states that may be negative; an optimizer may take the square root of any other state."""
_POSITIVE = ("running_var",)
"""Names of buffers whose square root is taken."""


def random_inputs(func: FuncOp, seed: int = 0) -> list[torch.Tensor]:
    """
    Return one tensor per argument, which depends only on the arguments and `seed`, and not on the machine.

    Integers are drawn from the argument's range (labels may be ignored labels), the step count is 0, constants keep
    their value; parameters and states are normal numbers of standard deviation 0.1, batches of standard deviation 1,
    and second moments are positive.

    Raises:
        VerifyException: a range is not two rising integers.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = zip(func.body.block.args, argument_attributes(func), strict=True)
    return [_input(argument, roles, generator) for argument, roles in pairs]


def batch_ranges(func: FuncOp) -> dict[str, tuple[int, int]]:
    """Return the half-open ranges of the integer items in a step's batch, by item."""
    pairs = zip(func.body.block.args, argument_attributes(func), strict=True)
    return {
        str(python_value(roles[train.BATCH])): _range(argument, roles)
        for argument, roles in pairs
        if train.BATCH in roles and RANGE in roles
    }


def _input(argument: SSAValue, roles: Mapping[str, Attribute], generator: torch.Generator) -> torch.Tensor:
    shape, dtype = shape_of(argument), torch_dtype(dtype_of(argument))
    if isinstance(given := roles.get(VALUE), DenseIntOrFPElementsAttr):
        values = torch.tensor(given.get_values()).to(dtype)
        return values.reshape(shape) if values.numel() != 1 else values.reshape(()).expand(shape).clone()
    if train.STEP_COUNT in roles:
        return torch.zeros(shape, dtype=dtype)
    if train.LEARNING_RATE in roles:
        return torch.full(shape, _LEARNING_RATE, dtype=dtype)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.complex128).to(dtype)
    if train.SEED in roles:
        return torch.full(shape, _SEED, dtype=dtype)
    if not dtype.is_floating_point:
        return _integers(shape, *_range(argument, roles), generator).to(dtype)
    # Numbers are drawn in float64, so that they are equal for all dtypes of an argument.
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    if _is_positive(roles):
        normal = normal.abs() + 0.5
    return (normal if train.BATCH in roles else 0.1 * normal).to(dtype)


def _integers(shape: tuple[int, ...], low: int, high: int, generator: torch.Generator) -> torch.Tensor:
    """Draw integers of a range; a negative lower end is the label to ignore, and the only negative number drawn."""
    drawn = torch.randint(max(low, 0), max(high, 1), shape, generator=generator)
    if low >= 0:
        return drawn
    return torch.where(torch.rand(shape, generator=generator) < _IGNORED_SHARE, low, drawn)


def _range(argument: SSAValue, roles: Mapping[str, Attribute]) -> tuple[int, int]:
    limits = python_value(roles[RANGE]) if RANGE in roles else [0, 2]
    match limits:
        case [int(low), int(high)] if low < high:
            return low, high
        case _:
            found = f"found {limits}"
            raise VerifyException(f"{value_text(argument)}: `{RANGE}` must be two rising integers, {found}")


def _is_positive(roles: Mapping[str, Attribute]) -> bool:
    """Return whether an argument must be positive because its square root may be taken."""
    if train.STATE in roles:
        return python_value(roles[train.STATE])[-1] not in _SIGNED
    return train.BUFFER in roles and str(python_value(roles[train.BUFFER])).rpartition(".")[2] in _POSITIVE
