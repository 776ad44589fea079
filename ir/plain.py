"""Types of plain data: contents of TOML and JSON files, and arguments of ops that are not tensors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeGuard

Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | Mapping[str, Plain] | None"
PlainTable: TypeAlias = Mapping[str, Plain]


def closest(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the known names that are most similar to an unknown one, whatever their case, the most similar first."""
    by_lower = {other.lower(): other for other in known}
    return [by_lower[near] for near in difflib.get_close_matches(name.lower(), by_lower, n=most, cutoff=cutoff)]


def did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    """Return the end of a message about an unknown name, with similar known names; empty if none is similar."""
    near = " or ".join(f'"{each}"' for each in closest(name, known, most))
    return f"; did you mean {near}?" if near else ""


def are_tables(values: Sequence[Plain]) -> TypeGuard[Sequence[PlainTable]]:
    """Whether all values are tables (objects in JSON)."""
    return all(isinstance(value, Mapping) for value in values)


def are_texts(values: Sequence[Plain]) -> TypeGuard[Sequence[str]]:
    """Whether all values are strings."""
    return all(isinstance(value, str) for value in values)
