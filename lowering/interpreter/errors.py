"""The errors of the interpreter."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import DiagnosticException

from ..codegen.errors import place


class InterpreterError(DiagnosticException):
    """An error for IR that cannot be run; the message names the op, its results and its place in the model."""

    def __init__(self, op: Operation, message: str) -> None:
        names = ", ".join(map(value_text, op.results))
        where = f" ({at})" if (at := place(op)) else ""
        super().__init__(f"'{op.name}'{' ' if names else ''}{names}{where}: {message}")


def value_text(value: SSAValue) -> str:
    """Return the text for a value in a message."""
    return f"%{value.name_hint}" if value.name_hint else "a value without a name"
