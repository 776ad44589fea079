"""Write the Python text of one op's call on the local tensors of one rank, for measurements."""

from __future__ import annotations

import math

from ...dialects.compute import ComputeOp, shape_of
from ...ir.mesh import Mesh
from ...ir.sharding import local_shape
from ..calls.calls import Arg, Call, Dtype, Operand
from ..codegen.calls import MADE_ON_DEVICE, function_name
from ..codegen.python_text import checked_name, dtype, quoted
from .local_compute import signature_of


def call_text(call: Call) -> str:
    """Return a call as a generated program writes it, on operands `x0`, `x1`, ... and on `device` for new tensors."""
    arguments = [_text(arg) for arg in call.args] + [f"{checked_name(name)}={_text(arg)}" for name, arg in call.kwargs]
    makes = call.target.startswith("aten.") and not any(_operands(arg) for arg in call.args)
    if makes or call.target in MADE_ON_DEVICE:
        arguments.append("device=device")
    return f"{function_name(call.target)}({', '.join(arguments)})"


def local_shapes(op: ComputeOp, mesh: Mesh, rank: int) -> list[tuple[int, ...]]:
    """Return the shapes of the operands of `op` on `rank`."""
    spread = signature_of(op).operands
    return [local_shape(shape_of(value), sharding, mesh, rank) for value, sharding in zip(op.args, spread, strict=True)]


def _operands(arg: Arg) -> bool:
    return isinstance(arg, Operand) or (isinstance(arg, tuple) and any(map(_operands, arg)))


def _text(arg: Arg) -> str:
    match arg:
        case Operand(index, ordered):
            return f"x{index}.contiguous()" if ordered else f"x{index}"
        case Dtype(name):
            return dtype(name)
        case tuple():
            return f"[{', '.join(map(_text, arg))}]"
        case str():
            return quoted(arg)
        case float() if not math.isfinite(arg):
            return f"float('{arg}')"
        case _:
            return repr(arg)
