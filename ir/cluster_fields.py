"""Fields of a cluster file: numbers with units, and errors with the line and field."""

from __future__ import annotations

import itertools
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, DecimalException
from typing import TypeAlias

from .mesh import MOST_DEVICES
from .plain import PlainTable, are_tables, did_you_mean

Path: TypeAlias = tuple[str | int, ...]
"""The path of a section: `("device", "a100")`, or `("host", 1)` for the second [[host]]."""

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEYS = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_KEYS})\s*\]\]?\s*(?:#.*)?")
_FIELD = re.compile(rf"\s*({_KEYS})\s*=")


class ClusterFileError(ValueError):
    """A cluster file that cannot be used; the message names the file, the line and the field."""


@dataclass(frozen=True)
class Unit:
    """
    The unit of a number: its name, an example of a text with a unit, the factor of each unit, and the range of accepted
    numbers. No device or link has numbers beyond the range, and sums of such numbers could overflow.
    """

    what: str
    example: str
    units: Mapping[str, Decimal]
    least: float
    most: float


_THOUSANDS = {prefix: Decimal(1000) ** i for i, prefix in enumerate("KMGTP", 1)}
_BINARY = {f"{prefix}i": Decimal(1024) ** i for i, prefix in enumerate("KMGT", 1)}
_SIZES = {f"{prefix}B": factor for prefix, factor in {"": Decimal(1), **_THOUSANDS, **_BINARY}.items()}
_BITS = {f"{prefix}bit/s": factor / 8 for prefix, factor in {"": Decimal(1), **_THOUSANDS}.items()}
_TIMES = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "ns": Decimal("1e-9")}

PLAIN = Unit("", "", {}, 1e-30, 1e30)
BYTES = Unit("bytes", "40GiB", _SIZES, 1, 1e18)
SECONDS = Unit("seconds", "5us", _TIMES, 1e-15, 1e6)
BANDWIDTH = Unit("bytes/s", "25GB/s", {**{f"{unit}/s": factor for unit, factor in _SIZES.items()}, **_BITS}, 1, 1e18)
FLOPS = Unit("FLOP/s", "19.5TFLOP/s", {f"{p}FLOP/s": f for p, f in {"": Decimal(1), **_THOUSANDS}.items()}, 1, 1e21)
DURATION = Unit("seconds", "90s", {**_TIMES, "min": Decimal(60), "h": Decimal(3600)}, 1e-3, 1e9)
"""The unit of durations of work, such as a search."""
BLOCK = replace(BYTES, most=2.0**30)
BETA = replace(PLAIN, least=1e-18, most=1)
PART = replace(PLAIN, least=1e-6, most=1e6)
"""A fraction of a rate or of a time; above 1 where caches help."""


@dataclass(frozen=True)
class Count:
    """The upper limit of a whole number in a field; its lower limit is 1."""

    most: int


DEVICES = Count(MOST_DEVICES)
NICS = Count(2**10)
AXES = Count(8)

MOST_KEY = 2**20
"""Upper limit of the characters of an op's key: the key of joined updates names each update."""

_MOST_NAME = 1000
_MOST_SHOWN = 80
"""Longer values and names are cut in messages."""


class Source:
    """The text of a file, with the line of each entry."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self._lines = dict(reversed(list(_located(text.splitlines()))))

    def line(self, path: Path) -> int:
        """Return the 1-based line of the entry at `path`, or of the closest section around it; 0 if there is none."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 0)


def _located(lines: list[str]) -> Iterator[tuple[Path, int]]:
    """Yield the path of each entry that begins on a line, with the number of the line."""
    section: Path = ()
    counts: dict[Path, int] = {}
    for number, line in enumerate(lines, 1):
        if match := _HEADER.fullmatch(line):
            # A repeated section stands for its last entry so far.
            keys = _split(match[2])
            path: Path = ()
            for key in keys[:-1]:
                path = (*path, key)
                path = (*path, counts[path]) if path in counts else path
            section = (*path, keys[-1])
            if match[1] == "[[":
                counts[section] = counts.get(section, -1) + 1
                section = (*section, counts[section])
            yield section, number
        elif match := _FIELD.match(line):
            yield (*section, *_split(match[1])), number


def _split(keys: str) -> tuple[str, ...]:
    return tuple(key[1:-1] if key[0] in "\"'" else key for key in re.findall(_KEY, keys))


class Section:
    """One table of a file; its methods read fields and raise ClusterFileError for a wrong field."""

    def __init__(self, source: Source, path: Path, table: PlainTable) -> None:
        self.source, self.path, self.table = source, path, table

    def fail(self, field: str, message: str) -> ClusterFileError:
        """Return the error of a field, or of the section itself if `field` is empty."""
        line = self.source.line((*self.path, field) if field else self.path)
        place = f"{self.source.name}:{line}" if line else self.source.name
        section = ".".join(key for key in self.path if isinstance(key, str))
        name = _cut(f"[{section}] {field}".strip() if section else field)
        return ClusterFileError(f"{place}: {name}: {message}")

    def only(self, known: Collection[str], what: str = "here") -> None:
        """Refuse fields that are not in `known`."""
        for name in self.table:
            if name not in known:
                hint = did_you_mean(_cut(name), known)
                raise self.fail(name, f"is not a field {what}; expected one of {', '.join(sorted(known))}{hint}")

    def sections(self, field: str) -> dict[str, Section]:
        """Return the tables `[field.NAME]` by name."""
        section = self.table.get(field, {})
        if not isinstance(section, dict) or not are_tables(tables := list(section.values())):
            raise self.fail(field, f"must be sections, as [{self._header(field)}.NAME]")
        for name in section:
            self.name(field, name)
        paths = {name: (*self.path, field, name) for name in section}
        return {name: Section(self.source, paths[name], table) for name, table in zip(section, tables, strict=True)}

    def listed(self, field: str) -> list[Section]:
        """Return the tables `[[field]]` in order."""
        tables = self.table.get(field, [])
        if not isinstance(tables, list) or not are_tables(tables):
            raise self.fail(field, f"must be sections, as [[{self._header(field)}]]")
        return [Section(self.source, (*self.path, field, i), table) for i, table in enumerate(tables)]

    def section(self, field: str) -> Section | None:
        """Return the table `[field]`, or None if it is absent."""
        table = self.table.get(field)
        if table is not None and not isinstance(table, dict):
            raise self.fail(field, f"must be a section, as [{self._header(field)}]")
        return None if table is None else Section(self.source, (*self.path, field), table)

    def numbers(
        self, field: str, unit: Unit = PLAIN, *, positive: bool = True, most: int = _MOST_NAME
    ) -> dict[str, float]:
        """Return a table of numbers, with names of at most `most` characters; empty if it is absent."""
        inner = self.section(field)
        if inner is None:
            return {}
        return {inner.name(name, name, most): inner.number(name, unit, positive=positive) for name in inner.table}

    def number(self, field: str, unit: Unit = PLAIN, *, default: float | None = None, positive: bool = True) -> float:
        """Return a number, which may be text with a unit; 0 is allowed unless `positive`."""
        if (value := self.table.get(field, default)) is None:
            raise self.fail(field, "missing" + (f"; expected {_wanted(unit)}" if unit.what else ""))
        return self.checked(field, value, unit, positive=positive)

    def checked(self, field: str, value: object, unit: Unit = PLAIN, *, positive: bool = True) -> float:
        """Return the number that `value`, read from `field`, stands for."""
        number = _with_unit(value, unit) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise self.fail(field, f"is {shown(value)}, expected {_wanted(unit)}")
        if not (unit.least <= number <= unit.most or (number == 0 and not positive)):
            kind = "a positive number" if positive else "a non-negative number, 0 or"
            raise self.fail(field, f"is {shown(value)}, expected {kind} from {unit.least:g} to {unit.most:g}")
        return float(number)

    def count(self, field: str, most: Count, default: int | None = None) -> int:
        """Return a positive whole number."""
        value = self.table.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most.most:
            given = "missing" if value is None else f"is {shown(value)}"
            raise self.fail(field, f"{given}, expected a positive whole number, at most {most.most}")
        return value

    def text(self, field: str, default: str = "") -> str:
        """Return text."""
        if not isinstance(value := self.table.get(field, default), str):
            raise self.fail(field, f"is {shown(value)}, expected text")
        return self.name(field, value)

    def name(self, field: str, value: str, most: int = _MOST_NAME) -> str:
        """Return a name of at most `most` printable characters, for messages and for the text of the IR."""
        if not value.isprintable() or len(value) > most:
            raise self.fail(field, f"is {shown(value)}, expected at most {most} printable characters")
        return value

    def flag(self, field: str) -> bool:
        """Return true or false; false if the field is absent."""
        if not isinstance(value := self.table.get(field, False), bool):
            raise self.fail(field, f"is {shown(value)}, expected true or false")
        return value

    def one_of(self, field: str, known: Collection[str], default: str = "") -> str:
        """Return one of the names in `known`."""
        value = self.table.get(field, default)
        if not isinstance(value, str) or value not in known:
            hint = did_you_mean(shown(value), known)
            raise self.fail(
                field, f"{shown(value)} is not one of those described: {', '.join(filter(None, known)) or 'none'}{hint}"
            )
        return value

    def pairs(self, field: str, example: str, units: tuple[Unit, Unit]) -> tuple[tuple[float, float], ...]:
        """Return pairs of positive numbers, ascending by their first numbers; empty if the field is absent."""
        value = self.table.get(field, [])
        pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2] if isinstance(value, list) else []
        if not isinstance(value, list) or len(pairs) < len(value):
            raise self.fail(field, f"expected pairs of numbers, as {example}")
        numbers = tuple((self.checked(field, a, units[0]), self.checked(field, b, units[1])) for a, b in pairs)
        if any(a >= b for (a, _), (b, _) in itertools.pairwise(numbers)):
            raise self.fail(field, "the first number of each pair must be larger than in the pair before")
        return numbers

    def _header(self, field: str) -> str:
        return ".".join(str(key) for key in (*self.path, field) if isinstance(key, str))


def shown(value: object) -> str:
    """Return the text of a value for a message, cut if it is long; Python cannot print thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, str | list | dict):
        short = reprlib.Repr()
        short.maxstring = short.maxother = _MOST_SHOWN
        return _cut(short.repr(value))
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _with_unit(text: str, unit: Unit) -> float | str:
    """Return the number in a text with a unit, or the text itself if it holds no number."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(\S*)\s*", text)
    units = {"": Decimal(1), **unit.units}
    if match is None or not unit.what or match[2] not in units:
        return text
    try:
        return float(Decimal(match[1]) * units[match[2]])
    except (DecimalException, OverflowError):
        return text


def quantity(text: str, unit: Unit, *, positive: bool = True) -> float:
    """Return the number in a text such as `90` or `2 min`; the ValueError about another text has an example."""
    number = _with_unit(text, unit)
    if isinstance(number, str) or not (unit.least <= number <= unit.most or (number == 0 and not positive)):
        units = ", ".join(unit.units)
        raise ValueError(f"{shown(text)} is not {_wanted(unit)}, from {unit.least:g} to {unit.most:g} (units: {units})")
    return number


def _wanted(unit: Unit) -> str:
    return f'a number of {unit.what}, or text as "{unit.example}"' if unit.what else "a number"
