"""The one table in which ranks differ: local sizes, one row per rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .emit_layout import Doc, Group, flat, literal, string, tuple_of

TABLE = "SIZES"
RANK = "n"
"""The names of the table and of the rank in the program."""


class Sizes:
    """The rows entered so far; equal rows are entered once, under the name of their first use."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[Any, ...]] = {}
        self._keys: dict[tuple[Any, ...], str] = {}
        self.uses_rank = False

    def __bool__(self) -> bool:
        return bool(self._rows)

    def entry(self, key: str, values: Sequence[Any]) -> Doc:
        """
        A value that may differ by rank: as a literal where it does not, else as `SIZES[key][n]`.

        `values` has one item, or one per rank.
        """
        row = tuple(map(_frozen, values))
        if all(item == row[0] and type(item) is type(row[0]) for item in row):
            return literal(values[0])
        if (known := self._keys.get(row)) is None:
            known = self._keys[row] = self._unused(key)
            self._rows[known] = row
        self.uses_rank = True
        return f'{TABLE}["{known}"][{RANK}]'

    def outside(self, ranks: Sequence[int]) -> str:
        """The condition that this rank is none of `ranks`."""
        self.uses_rank = True
        return f"{RANK} not in {flat(literal(tuple(ranks)))}"

    def table(self) -> Group:
        """`SIZES = {...}`, a line or more per row."""
        rows = (self._row(key, row) for key, row in self._rows.items())
        return Group(f"{TABLE} = {{", tuple(rows), "}")

    @staticmethod
    def _row(key: str, row: tuple[Any, ...]) -> Group:
        return tuple_of(map(literal, row), prefix=f"{string(key)}: ")

    def _unused(self, key: str) -> str:
        name, count = key, 1
        while name in self._rows:
            count += 1
            name = f"{key}.{count}"
        return name


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
