"""
A program whose ops run in ranges by layer of the model (`LayerRange`).

A comment in a program names the layer that follows, and its phase except forward (`codegen.errors.place`):

    # h.0.mlp.up  (models/transformer.py:96), backward
    up_grad = torch.mm(...)

With ranges that becomes

    with LayerRange('backward h.0.mlp.up'):
        # h.0.mlp.up  (models/transformer.py:96), backward
        up_grad = torch.mm(...)

torch's profiler then shows a range around all calls in it, and a recorder of steps learns the phase (`step_recorder`).
Other runs use the program without ranges.

The function of equal layers has the name `h.*.mlp.up`. The number of the layer is known where the function is called:

    # h.0
    LAYER[0] = '0'
    h_0_saved, h_0_add_1 = h_forward(comm, add, h[0])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from .executor import Executor, RankProgram
from .stages import run_text
from .step_recorder import PLACE, RECORDING, profiler_on

_INDENT = "    "
"""The indentation of a function's statements, as `lowering.codegen` writes them."""

_IMPORT = "import torch"
_RANGES = "from shardwright.runtime.layer_ranges import LayerRange"

_LAYER = "LAYER"
"""The list that holds the number of the layer whose function runs."""

_CALL = re.compile(r"(?:^ *|= )[^\W\d]\w*\(", re.ASCII)
"""A call of a function of the program."""

_PLACE = re.compile(
    rf"{_INDENT}# (?:(?P<layer>\S+)(?:  \(.+:\d+\))?|(?P<line>\S.*:\d+))(?:, (?P<phase>backward|update))?"
)


def with_ranges(program: str) -> str:
    """Return a program with a range around the ops of each layer: ``forward h.0.mlp``, ``backward h.0.mlp``, ..."""
    lines = program.split("\n")
    of_any = any("*" in (range_name(line) or "") for line in lines)
    return "\n".join(_lines(lines, [_RANGES, "", f'{_LAYER} = ["*"]'] if of_any else [_RANGES]))


def range_name(line: str) -> str | None:
    """Return the name of the range that begins at a line of a program, or None."""
    match = _PLACE.fullmatch(line)
    return f"{match['phase'] or 'forward'} {match['layer'] or match['line']}" if match is not None else None


def _lines(lines: Iterable[str], needed: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a program, with ranges and the definitions that they need."""
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
    """Put lines in a range if they have a name and contain more than comments."""
    if not name or all(line.lstrip().startswith("#") for line in block):
        yield from block
        return
    number = name.rpartition(".")[2]
    if number.isdecimal() and any(_CALL.search(line) for line in block):
        yield f"{_INDENT}{_LAYER}[0] = {number!r}"
        yield from block
        return
    layer = f".replace({'*'!r}, {_LAYER}[0], 1)" if "*" in name else ""
    yield f"{_INDENT}with LayerRange({name!r}{layer}):"
    yield from (_INDENT + line for line in block)


class LayerRange:
    """
    Marks the ops of a layer in a program with ranges.

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


class ProfiledLayers:
    """Makes an executor run the program with ranges while torch's profiler or a recorder of steps is on."""

    def __init__(self, executor: Executor, program: str) -> None:
        self._executor, self._program = executor, program
        self._plain, self._is_on = executor.main, False

    def follow_profiler(self) -> None:
        """Choose the program with or without ranges; call this before each step."""
        is_on = profiler_on() or RECORDING.recorder is not None
        if is_on is not self._is_on:
            self._executor.main, self._is_on = (self._ranged if is_on else self._plain), is_on

    @cached_property
    def _ranged(self) -> RankProgram:
        """The program with ranges, built at first use."""
        name = f"<the program of {self._executor.plan.name}, by layer>"
        with torch.profiler.record_function("shardwright: load the program with ranges"):
            loaded = run_text(with_ranges(self._program), name)
            return replace(self._plain, function=loaded[self._plain.function.__name__])
