"""Mutations of any text."""

from __future__ import annotations

import random


def deleted(text: str, draw: random.Random) -> str:
    """Delete one line or three."""
    lines = text.splitlines()
    at = draw.randrange(len(lines) or 1)
    return "\n".join(lines[:at] + lines[at + draw.choice((1, 1, 3)) :]) + "\n"


def repeated(text: str, draw: random.Random) -> str:
    """Insert a copy of a line once or twice, anywhere."""
    lines = text.splitlines() or [""]
    at, to = draw.randrange(len(lines)), draw.randrange(len(lines) + 1)
    return "\n".join(lines[:to] + [lines[at]] * draw.choice((1, 1, 2)) + lines[to:]) + "\n"


def characters(text: str, draw: random.Random) -> str:
    """Insert, delete or replace a few characters."""
    for _ in range(draw.choice((1, 2, 8))):
        at = draw.randrange(len(text) + 1)
        kind = draw.randrange(3)
        some = draw.choice("\0\x7f\u2028\ud800é[]{}=\"'\\#\n\r\t.,-+_0e9")
        text = text[:at] + ("" if kind == 0 else some) + text[at + (kind < 2) :]
    return text


def cut(text: str, draw: random.Random) -> str:
    """Keep the beginning of the text."""
    return text[: draw.randrange(len(text) + 1)]
