"""
`--verify-diagnostics`: checks the errors that a file expects, in the syntax of `mlir-opt`.

    // expected-error@+1 {{is not registered}}
    %y = arith.adi %x, %x : i32

The text in braces is part of the message. Without `@` the expectation refers to its own line. `@+1` and `@-2` count
lines from there; `@below` and `@above` mean the nearest line without an expectation; `@unknown` means no line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .diagnostics import Diagnostic

_EXPECTATION = re.compile(
    r"//.*?expected-(?P<kind>error|warning|note|remark)\s*"
    r"(?:@(?P<line>[+-]\d+|above|below|unknown))?\s*\{\{(?P<text>.*)\}\}"
)


@dataclass(frozen=True)
class Expectation:
    """An expected message of `kind` that contains `text`, about `line` (0 for none), in a comment on line `written`."""

    kind: str
    text: str
    line: int
    written: int
    col: int


def unmet(source: str, file: str, produced: Sequence[Diagnostic]) -> list[Diagnostic]:
    """
    Return the differences between the expectations in `source` and the diagnostics that it produced.

    Every error must be expected, and every expectation must be met exactly once. The notes and the hint of an error may
    be expected too, as notes.
    """
    open_ones = list(expectations(source))
    complaints: list[Diagnostic] = []
    for diagnostic in produced:
        if not _meet(open_ones, "error", diagnostic.line, diagnostic.message):
            message = f"unexpected error: {diagnostic.message}"
            complaints.append(Diagnostic(message, file, diagnostic.line, diagnostic.col, diagnostic.source))
        for note in (*diagnostic.notes, diagnostic.hint):
            _meet(open_ones, "note", diagnostic.line, note)
    lines = source.split("\n")
    complaints += (
        Diagnostic(
            f'expected {each.kind} "{each.text}" was not produced',
            file,
            each.written,
            each.col,
            lines[each.written - 1],
        )
        for each in open_ones
    )
    return complaints


def expectations(source: str) -> Iterator[Expectation]:
    """Yield every expectation in the comments of `source`."""
    lines = source.split("\n")
    matches = {number: match for number, line in enumerate(lines, 1) if (match := _EXPECTATION.search(line))}
    for number, match in matches.items():
        line = _target(match["line"], number, matches)
        yield Expectation(match["kind"], match["text"], line, number, match.start() + 1)


def _target(word: str | None, here: int, found: dict[int, re.Match[str]]) -> int:
    """Return the line that an expectation on line `here` refers to, or 0 for none."""
    if word in ("above", "below"):
        step = 1 if word == "below" else -1
        while here in found:
            here += step
        return here
    return 0 if word == "unknown" else here + int(word or 0)


def _meet(open_ones: list[Expectation], kind: str, line: int, text: str) -> bool:
    """Remove the first expectation that a message meets, and return whether there was one."""
    for each in open_ones:
        if (each.kind, each.line) == (kind, line) and each.text in text:
            open_ones.remove(each)
            return True
    return False
