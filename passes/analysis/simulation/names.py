"""The names of a step's ops and collectives in the user's model."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, CallSiteLoc, FileLineColLoc, FusedLoc, NameLoc
from xdsl.ir import Attribute, Operation

from ....dialects.aten import AtenOp
from ....dialects.compute import ComputeOp
from ....dialects.pipe import FragmentOp, TransferOp
from ....dialects.spmd import StartOp
from ....dialects.step import BACKWARD
from ....dialects.train import ForeachOp, TrainOp, is_update
from ...step.blocks import layer_of


def op_name(op: Operation) -> str:
    """Return the name of an op, as `h.3.attn.q  aten.mm`: its module, or else its value, and its verb."""
    values = op.args if isinstance(op, StartOp) else (op.operands if isinstance(op, TransferOp) else op.results)
    hints = [value.name_hint for value in values if value.name_hint]
    where = layer_of(op) or (f"%{hints[0]}" if hints else "")
    if isinstance(op, StartOp):
        where += f" and {len(op.args) - 1} more" if len(op.args) > 1 else ""
    return "  ".join(filter(None, (where, verb(op))))


def numbered(op: Operation) -> str:
    """Return the name of an op with `*` in the place of layer numbers, so that equal layers share a name."""
    return numbered_name(op_name(op))


def numbered_name(name: str) -> str:
    """Return a name of the model with `*` in the place of layer numbers."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def verb(op: Operation) -> str:
    """Return the kind of an op: its name, the collective that a start begins, or the overload of an opaque op."""
    if isinstance(op, StartOp):
        return f"spmd.{op.collective.value}"
    if isinstance(op, ForeachOp):
        return f"{op.name} {op.overload} of {op.count}"
    if isinstance(op, ComputeOp) and not isinstance(op, AtenOp | TrainOp):
        return op.overload
    return op.name


def category(op: Operation) -> str:
    """Return the phase of the step that an op belongs to; a communication belongs to the phase of its operand."""
    if is_update(op):
        return "update"
    if BACKWARD in op.attributes:
        return "backward"
    source = op.operands[0].owner if op.operands and not isinstance(op, ComputeOp) else None
    return category(source) if isinstance(source, Operation) and not isinstance(source, FragmentOp) else "forward"


def source_line(op: Operation) -> str:
    """Return the line of the user's code that an op comes from, as `model.py:12`, or an empty string."""
    return _line(op.location)


def _line(location: Attribute) -> str:
    match location:
        case FileLineColLoc():
            return f"{location.filename.data}:{location.line.data}"
        case NameLoc():
            return _line(location.location)
        case CallSiteLoc():
            return _line(location.callee)
        case FusedLoc(locations=ArrayAttr(data=parts)):
            lines = (_line(part) for part in parts)
            return next((line for line in lines if line), "")
        case _:
            return ""
