"""Types of plain data: contents of TOML and JSON files, and arguments of ops that are not tensors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeGuard

Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | Mapping[str, Plain] | None"
PlainTable: TypeAlias = Mapping[str, Plain]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name, with the most similar known name; empty if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def are_tables(values: Sequence[Plain]) -> TypeGuard[Sequence[PlainTable]]:
    """Whether all values are tables (objects in JSON)."""
    return all(isinstance(value, Mapping) for value in values)


def are_texts(values: Sequence[Plain]) -> TypeGuard[Sequence[str]]:
    """Whether all values are strings."""
    return all(isinstance(value, str) for value in values)
