"""
A program whose ops run in ranges of `torch.profiler`, by layer of the model.

Programs say in a comment which layer follows, and whether in forward, backward or update (`emit_errors.place`):

    # h.0.mlp.up  (models/transformer.py:96), backward
    up_grad = torch.mm(...)

With ranges that is

    with record_function("backward h.0.mlp.up"):
        # h.0.mlp.up  (models/transformer.py:96), backward
        up_grad = torch.mm(...)

A profiler shows a range around all that was called in it. What no profiler watches runs the program without ranges.

The function of equal layers says `h.*.mlp.up`. Which of them it is called for is known where it is called:

    # h.0
    LAYER[0] = "0"
    h_0_saved, h_0_add_1 = h_forward(comm, add, h[0])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from .errors import UPDATE
from .layout import INDENT
from .python_text import quoted

_IMPORT = "import torch"
_RANGES = "from torch.profiler import record_function"

_LAYER = "LAYER"
"""The list that holds the number of the layer for which a function is called."""

_CALL = re.compile(r"(?:^ *|= )[^\W\d]\w*\(", re.ASCII)
"""A call of a function of the program."""

_PLACE = re.compile(
    rf"{INDENT}# (?:(?P<layer>\S+)(?:  \(.+:\d+\))?|(?P<line>\S.*:\d+))(?:, (?P<phase>backward|{UPDATE}))?"
)


def with_ranges(program: str) -> str:
    """The text of a program with a range around what each layer does: ``forward h.0.mlp``, ``backward h.0.mlp``, ..."""
    lines = program.split("\n")
    of_any = any("*" in (range_name(line) or "") for line in lines)
    return "\n".join(_lines(lines, [_RANGES, "", f'{_LAYER} = ["*"]'] if of_any else [_RANGES]))


def range_name(line: str) -> str | None:
    """What the range is called that begins at a line of a program; None where none does."""
    found = _PLACE.fullmatch(line)
    return f"{found['phase'] or 'forward'} {found['layer'] or found['line']}" if found is not None else None


def _lines(lines: Iterable[str], needed: Sequence[str]) -> Iterator[str]:
    """The lines of a program, with what its ranges need."""
    block: list[str] = []
    name = ""
    for line in lines:
        begins = range_name(line)
        if begins is not None or not line.startswith(INDENT):
            yield from _in_range(name, block)
            name, block = begins or "", []
        block.append(line)
        if line == _IMPORT:
            block += needed
    yield from _in_range(name, block)


def _in_range(name: str, block: list[str]) -> Iterator[str]:
    """Some lines, in a range if they have a name and do anything."""
    if not name or all(line.lstrip().startswith("#") for line in block):
        yield from block
        return
    number = name.rpartition(".")[2]
    if number.isdecimal() and any(_CALL.search(line) for line in block):
        yield f"{INDENT}{_LAYER}[0] = {quoted(number)}"
        yield from block
        return
    known = f".replace({quoted('*')}, {_LAYER}[0], 1)" if "*" in name else ""
    yield f"{INDENT}with record_function({quoted(name)}{known}):"
    yield from (INDENT + line for line in block)
