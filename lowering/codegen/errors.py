"""The errors of emission."""

from __future__ import annotations

import re

from xdsl.dialects.builtin import FileLineColLoc, NameLoc
from xdsl.ir import Operation
from xdsl.utils.exceptions import DiagnosticException

from ...dialects.step import BACKWARD
from ...dialects.train import is_update
from .python_text import remark

FORWARD, UPDATE = "forward", "update"
"""The names of phases of a step in programs, besides `backward`."""

_ROOT = "model"
"""The layer that programs name for the update of a parameter that belongs to the model itself."""

_MOST_CHARACTERS = 500
"""The most characters of a place in a message, since the name of a layer may be arbitrarily long."""


class EmitError(DiagnosticException):
    """An error for IR that cannot be written as a program; the message names the op, its place and the remedy."""

    def __init__(self, op: Operation, message: str) -> None:
        names = ", ".join(f"%{result.name_hint}" for result in op.results if result.name_hint)
        at = place(op)[:_MOST_CHARACTERS]
        where = f" from {at}" if at else ""
        super().__init__(f"'{op.name}'{' ' if names else ''}{names}{where}: {message}")


def place(op: Operation, most: int | None = None) -> str:
    """
    Return the place of an op in the user's model, `fc1  (models/mlp.py:12), backward`, or an empty string if unknown.

    The text has only the last two parts of the path, so that it does not depend on the machine. A layer's name has no
    spaces, which distinguishes places from other comments in a program (`runtime.layer_ranges`).

    Args:
        most: maximum width in columns; a longer text omits the line of the layer.
    """
    layer, file = "", op.location
    if isinstance(file, NameLoc):
        layer, file = re.sub(r"\s", "_", remark(file.desc.data)), file.location
    line = ""
    if isinstance(file, FileLineColLoc) and file.filename.data:
        path = "/".join(file.filename.data.replace("\\", "/").split("/")[-2:])
        line = remark(f"{path}:{file.line.data}")
    if is_update(op):
        layer = layer or _ROOT
    if not layer and not line:
        return ""
    phase = "" if (phase := phase_of(op)) == FORWARD else f", {phase}"
    text = (f"{layer}  ({line})" if layer and line else layer or line) + phase
    return text if most is None or len(text) <= most or not layer else layer + phase


def phase_of(op: Operation) -> str:
    """Return the phase of a step that an op belongs to."""
    return "backward" if BACKWARD in op.attributes else UPDATE if is_update(op) else FORWARD
