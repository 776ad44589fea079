"""Types of plain data: what TOML and JSON files hold, and the arguments of ops that are not tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeGuard

Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | Mapping[str, Plain] | None"
PlainTable: TypeAlias = Mapping[str, Plain]


def are_tables(values: Sequence[Plain]) -> TypeGuard[Sequence[PlainTable]]:
    """Whether all values are tables, the objects of JSON."""
    return all(isinstance(value, Mapping) for value in values)


def are_texts(values: Sequence[Plain]) -> TypeGuard[Sequence[str]]:
    """Whether all values are texts."""
    return all(isinstance(value, str) for value in values)
