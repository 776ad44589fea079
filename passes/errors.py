"""The errors of passes, which name the op, the value in the user's model, and the pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NoReturn, TypeAlias

from xdsl.dialects.builtin import ArrayAttr, CallSiteLoc, FileLineColLoc, FusedLoc, NameLoc, StringAttr
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import DiagnosticException, PassFailedException

from ..ir.plain import closest

FailureKind: TypeAlias = Literal["failed", "crashed", "invalid", "unsound"]


class OpFailure(PassFailedException):
    """A failure of a pass at one op, which the message names."""

    def __init__(self, op: Operation, message: str) -> None:
        super().__init__(f"{describe(op)}: {message}")
        self.op = op


class PassError(DiagnosticException):
    """
    A pass of a pipeline that did not succeed.

    `kind` says how: it "failed" (it cannot do the request), "crashed" (the pass itself is at fault; its exception is
    the `__cause__`), left "invalid" IR, or is "unsound" (the IR computes different values). `op` is the op concerned,
    or None if it is not known.
    """

    def __init__(self, pass_name: str, kind: FailureKind, message: str, op: Operation | None = None) -> None:
        super().__init__(f"pass '{pass_name}' {_VERBS[kind]}: {message}")
        self.pass_name = pass_name
        self.kind = kind
        self.op = op


_VERBS: dict[FailureKind, str] = {
    "failed": "failed",
    "crashed": "crashed",
    "invalid": "left IR that does not verify",
    "unsound": "changed what the program computes",
}


def fail(op: Operation, message: str) -> NoReturn:
    """Raise the OpFailure of `op`; `message` names the error, the expectation and the remedy."""
    raise OpFailure(op, message)


def describe(op: Operation) -> str:
    """Return the text for `op` in a message: `'aten.mm' op %h from "fc1" (model.py:3:4)`."""
    hints = [f"%{result.name_hint}" for result in op.results if result.name_hint]
    names = ", ".join(hints[:_NAMED]) + (f" and {len(hints) - _NAMED} more" if len(hints) > _NAMED else "")
    if isinstance(symbol := op.get_attr_or_prop("sym_name"), StringAttr):
        names = f"@{symbol.data}"
    parts = [f"'{op.name}' op", names, f"from {place}" if (place := place_in_model(op.location)) else ""]
    return " ".join(filter(None, parts))


_NAMED = 3
"""Largest number of results that a message names."""


def place_in_model(location: Attribute) -> str:
    """Return a location as prose: `"fc1" (model.py:3:4)`; empty if it is unknown."""
    match location:
        case NameLoc(desc=StringAttr(data=name), location=inner):
            within, layer = place_in_model(inner), f'"{name}"' if name else "the model itself"
            return f"{layer} ({within})" if within else layer
        case FileLineColLoc():
            return f"{location.filename.data}:{location.line.data}:{location.column.data}"
        case CallSiteLoc(callee=callee, caller=caller):
            return f"{place_in_model(callee)} called from {place_in_model(caller)}"
        case FusedLoc(locations=ArrayAttr(data=parts)):
            return ", ".join(filter(None, map(place_in_model, parts)))
        case _:
            return ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question whether the closest of `known` was meant; empty if no name is close."""
    close = closest(name, known)
    return f"did you mean '{close[0]}'?" if close else ""


def sentence(text: str) -> str:
    """Return a message in MLIR's style: it begins without a capital and ends without a point."""
    text = text.strip().rstrip("!.:")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
