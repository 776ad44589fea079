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
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .errors import UPDATE
from .layout import INDENT
from .python_text import quoted

_IMPORT = "import torch"
_RANGES = "from torch.profiler import record_function"

_PLACE = re.compile(
    rf"{INDENT}# (?:(?P<layer>\S+)(?:  \(.+:\d+\))?|(?P<line>\S.*:\d+))(?:, (?P<phase>backward|{UPDATE}))?"
)


def with_ranges(program: str) -> str:
    """The text of a program with a range around what each layer does: ``forward h.0.mlp``, ``backward h.0.mlp``, ..."""
    return "\n".join(_lines(program.split("\n")))


def range_name(line: str) -> str | None:
    """What the range is called that begins at a line of a program; None where none does."""
    found = _PLACE.fullmatch(line)
    return f"{found['phase'] or 'forward'} {found['layer'] or found['line']}" if found is not None else None


def _lines(lines: Iterable[str]) -> Iterator[str]:
    block: list[str] = []
    name = ""
    for line in lines:
        begins = range_name(line)
        if begins is not None or not line.startswith(INDENT):
            yield from _in_range(name, block)
            name, block = begins or "", []
        block.append(line)
        if line == _IMPORT:
            block.append(_RANGES)
    yield from _in_range(name, block)


def _in_range(name: str, block: list[str]) -> Iterator[str]:
    """Some lines, in a range if they have a name and do anything."""
    if not name or all(line.lstrip().startswith("#") for line in block):
        yield from block
        return
    yield f"{INDENT}with record_function({quoted(name)}):"
    yield from (INDENT + line for line in block)
