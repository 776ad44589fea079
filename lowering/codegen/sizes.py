"""The table of values that differ between ranks or parts of a loop, such as local sizes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .layout import Doc, Group, flat, literal, string, tuple_of
from .where import Devices

TABLE = "SIZES"
RANK = "n"
PART = "part"
"""The program's names for the table, the rank, and the part of a loop."""


class Table:
    """The rows of the table; equal rows are stored once, under the name of their first use."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[object, ...]] = {}
        self._keys: dict[tuple[object, ...], str] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def enter(self, key: str, row: tuple[object, ...]) -> str:
        """Store a row under `key`, or a similar name if it is taken, and return the expression for the row."""
        if (name := self._keys.get(row)) is None:
            name = self._keys[row] = self._unused(key)
            self._rows[name] = row
        return f"{TABLE}[{flat(string(name))}]"

    def table(self) -> Group:
        """Return `SIZES = {...}`."""
        rows = (tuple_of(map(literal, row), prefix=f"{flat(string(key))}: ") for key, row in self._rows.items())
        return Group(f"{TABLE} = {{", tuple(rows), "}")

    def _unused(self, key: str) -> str:
        name, count = key, 1
        while name in self._rows:
            count += 1
            name = f"{key}.{count}"
        return name


class Sizes:
    """The entries of one function in the table of the program."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.uses_rank = False

    def entry(self, key: str, values: Sequence[object], devices: Devices) -> Doc:
        """
        Return a literal if all values are equal, else `SIZES[key][n]`, `SIZES[key][part]` or `SIZES[key][n][part]`.

        Args:
            values: one value, or one per device of the grid.
            devices: devices that need the value.
        """
        if len(values) == 1:
            return literal(values[0])
        used = [[values[device] for device in parts] for parts in devices]
        by_rank = [tuple(map(_frozen, parts)) for parts in used]
        if all(_alike(item, by_rank[0][0]) for parts in by_rank for item in parts):
            return literal(used[0][0])
        if all(_alike(item, parts[0]) for parts in by_rank for item in parts):
            self.uses_rank = True
            return f"{self._table.enter(key, tuple(parts[0] for parts in by_rank))}[{RANK}]"
        if all(parts == by_rank[0] for parts in by_rank):
            return f"{self._table.enter(key, by_rank[0])}[{PART}]"
        self.uses_rank = True
        return f"{self._table.enter(key, tuple(by_rank))}[{RANK}][{PART}]"

    def outside(self, excluded: Collection[int], devices: Devices) -> str | None:
        """Return the condition that this rank and part is outside the `excluded` devices, or None if it always is."""
        places = [(n, part) for n, parts in enumerate(devices) for part, d in enumerate(parts) if d in excluded]
        if not places:
            return None
        self.uses_rank = True
        ranks = tuple(dict.fromkeys(n for n, _ in places))
        if len(places) == sum(len(devices[n]) for n in ranks):
            return f"{RANK} not in {flat(literal(ranks))}"
        return f"({RANK}, {PART}) not in {flat(literal(tuple(places)))}"


def _alike(item: object, other: object) -> bool:
    return item == other and type(item) is type(other)


def _frozen(value: object) -> object:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
