"""Read untrusted TOML, and write names into TOML safely."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence

from .plain import Plain

MOST_CHARACTERS = 2**24
"""Longer files are refused unread; a file with the measured times of a large model has some hundred thousand."""


def read_toml(text: str) -> dict[str, Plain]:
    """
    Return the tables of a TOML text.

    Raises:
        ValueError: it is not TOML, or is too long or too deeply nested to be read.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"has {len(text)} characters, expected at most {MOST_CHARACTERS}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def comment(text: str) -> str:
    """Return `text` as a comment on one line; characters that are not printable become spaces."""
    return "# " + "".join(c if c.isprintable() else " " for c in text)


def inline(value: Plain) -> str:
    """Return a value as TOML on one line."""
    match value:
        case bool() | str():
            # JSON leaves one control character unescaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return "{ " + ", ".join(f"{key(name)} = {inline(entry)}" for name, entry in value.items()) + " }"
        case Sequence():
            return "[" + ", ".join(map(inline, value)) + "]"
        case _:
            return repr(value)


def key(name: str) -> str:
    """Return the name of a field or section as TOML, in quotes where it needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else inline(name)
