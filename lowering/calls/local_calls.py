"""Make a call on tensors, with plain definitions in place of the runtime's fused functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..fused.table import FUNCTIONS
from .calls import Arg, Call, Dtype, Operand, resolve
from .dtypes import torch_dtype


def make_call(
    call: Call, operands: Sequence[torch.Tensor], precision: torch.dtype | None = None
) -> tuple[torch.Tensor | None, ...]:
    """
    Return the results of `call` on `operands`; no operand is modified.

    Args:
        precision: the dtype to use for every floating-point dtype that the call names; None keeps them.
    """

    def value(arg: Arg) -> object:
        match arg:
            case Operand(index, ordered):
                return operands[index].contiguous() if ordered else operands[index]
            case Dtype(name):
                return working_dtype(name, precision)
            case tuple():
                return [value(item) for item in arg]
            case _:
                return arg

    function = FUNCTIONS.get(call.target) or resolve(call.target)
    result = function(*map(value, call.args), **{name: value(arg) for name, arg in call.kwargs})
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def working_dtype(name: str, precision: torch.dtype | None) -> torch.dtype:
    """Return `precision` for a floating-point dtype `name`, if it is given, else the dtype itself."""
    dtype = torch_dtype(name)
    return precision if precision is not None and dtype.is_floating_point else dtype
