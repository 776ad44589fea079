"""
A program whose ops run in ranges by layer of the model (`LayerRange`).

Programs say in a comment which layer follows, and whether in forward, backward or update (`codegen.errors.place`):

    # h.0.mlp.up  (models/transformer.py:96), backward
    up_grad = torch.mm(...)

With ranges that is

    with LayerRange('backward h.0.mlp.up'):
        # h.0.mlp.up  (models/transformer.py:96), backward
        up_grad = torch.mm(...)

A profiler of torch's shows a range around all that was called in it, and a recorder of steps hears of the phase
(`step_recorder`). What neither watches runs the program without ranges.

The function of equal layers says `h.*.mlp.up`. Which of them it is called for is known where it is called:

    # h.0
    LAYER[0] = '0'
    h_0_saved, h_0_add_1 = h_forward(comm, add, h[0])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from .place import PLACE, profiler_on
from .step_recorder import RECORDING

_INDENT = "    "
"""Of the statements of a function, as `lowering.codegen` writes them."""

_IMPORT = "import torch"
_RANGES = "from shardwright.runtime.layer_ranges import LayerRange"

_LAYER = "LAYER"
"""The list that holds the number of the layer for which a function is called."""

_CALL = re.compile(r"(?:^ *|= )[^\W\d]\w*\(", re.ASCII)
"""A call of a function of the program."""

_PLACE = re.compile(
    rf"{_INDENT}# (?:(?P<layer>\S+)(?:  \(.+:\d+\))?|(?P<line>\S.*:\d+))(?:, (?P<phase>backward|update))?"
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
        if begins is not None or not line.startswith(_INDENT):
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
        yield f"{_INDENT}{_LAYER}[0] = {number!r}"
        yield from block
        return
    known = f".replace({'*'!r}, {_LAYER}[0], 1)" if "*" in name else ""
    yield f"{_INDENT}with LayerRange({name!r}{known}):"
    yield from (_INDENT + line for line in block)


class LayerRange:
    """
    Around what a layer does in a program with ranges.

    Args:
        name: phase and layer, as ``backward h.0.mlp.up``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._range: Any = None

    def __enter__(self) -> None:
        PLACE.layer = self._name
        if RECORDING.recorder is not None:
            RECORDING.recorder.enter(self._name.partition(" ")[0])
        if profiler_on():
            self._range = torch.profiler.record_function(self._name)
            self._range.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._range is not None:
            self._range.__exit__(*error)
        PLACE.layer = ""
