"""Changes that any text can be given."""

from __future__ import annotations

import random


def deleted(text: str, draw: random.Random) -> str:
    """One line, or three, less."""
    lines = text.splitlines()
    at = draw.randrange(len(lines) or 1)
    return "\n".join(lines[:at] + lines[at + draw.choice((1, 1, 3)) :]) + "\n"


def repeated(text: str, draw: random.Random) -> str:
    """A line once or twice more, anywhere."""
    lines = text.splitlines() or [""]
    at, to = draw.randrange(len(lines)), draw.randrange(len(lines) + 1)
    return "\n".join(lines[:to] + [lines[at]] * draw.choice((1, 1, 2)) + lines[to:]) + "\n"


def characters(text: str, draw: random.Random) -> str:
    """A few characters more, less or others."""
    for _ in range(draw.choice((1, 2, 8))):
        at = draw.randrange(len(text) + 1)
        kind = draw.randrange(3)
        some = draw.choice("\0\x7f\u2028\ud800é[]{}=\"'\\#\n\r\t.,-+_0e9")
        text = text[:at] + ("" if kind == 0 else some) + text[at + (kind < 2) :]
    return text


def cut(text: str, draw: random.Random) -> str:
    """The beginning."""
    return text[: draw.randrange(len(text) + 1)]
