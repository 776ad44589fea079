"""What emission says about IR that is not a program yet."""

from __future__ import annotations

from xdsl.dialects.builtin import FileLineColLoc, NameLoc
from xdsl.ir import Operation
from xdsl.utils.exceptions import DiagnosticException

from ..dialects.step import BACKWARD


class EmitError(DiagnosticException):
    """IR that cannot be written as a program; the message names the op, its place and what to run."""

    def __init__(self, op: Operation, message: str) -> None:
        names = ", ".join(f"%{result.name_hint}" for result in op.results if result.name_hint)
        at = place(op)
        where = f" from {at}" if at else ""
        super().__init__(f"'{op.name}'{' ' if names else ''}{names}{where}: {message}")


def place(op: Operation) -> str:
    """
    Where in the user's model an op comes from: `fc1  (models/mlp.py:12), backward`; empty if unknown.

    Of the path the last two parts are given, so that the text does not depend on the machine.
    """
    layer, file = "", op.location
    if isinstance(file, NameLoc):
        layer, file = file.desc.data, file.location
    text = layer
    if isinstance(file, FileLineColLoc) and file.filename.data:
        path = "/".join(file.filename.data.replace("\\", "/").split("/")[-2:])
        text = f"{layer}  ({path}:{file.line.data})" if layer else f"{path}:{file.line.data}"
    text = "".join(c if c.isprintable() else " " for c in text)
    return f"{text}, backward" if text and BACKWARD in op.attributes else text
