"""Choose Python names for the values of a program: valid, unique, and close to the names in the IR."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from xdsl.ir import SSAValue

from ...ir.collectives import CollectiveKind

_MOST = 200
"""The most characters of a name."""

_SHORTEST_SLICE = 3
"""The least number of list elements that are written as a slice."""

_MOST_TEXTS = 3
"""The most texts for the same elements of consecutive lists that are written one by one."""

UNUSED = "_"
"""The name of results that nobody reads."""

_AMBIGUOUS = {"l", "O", "I"}
_PROGRAM = {"LAYER", "MESH", "PLAN", "SIZES", "aten", "comm", "n", "rt", "torch"}
_FORM = re.compile(rf"([._](\d+|{'|'.join(CollectiveKind)}))+$")
_RESERVED = {*keyword.kwlist, *dir(builtins), *_AMBIGUOUS, *_PROGRAM, UNUSED}


@dataclass(frozen=True)
class PartOf:
    """One part of a micro-batched value."""

    value: SSAValue
    part: int

    @property
    def name_hint(self) -> str:
        """The hint of the value, followed by the number of the part."""
        return f"{self.value.name_hint or 'value'}.{self.part}"


Named: TypeAlias = SSAValue | PartOf


@dataclass(eq=False)
class NamedList:
    """
    A list of the program whose elements are values.

    Args:
        text: expression for the list in the program: `h_3_saved`, `h[3]`.
        values: value of each element.
        label: name of the list inside the function of a layer: `saved`, `h`.
        variable: whether `text` is a variable.
        table: the list that holds this list, and the place of this list in it, or None.
    """

    text: str
    values: list[Named]
    label: str
    variable: bool = True
    table: tuple[str, int] | None = None


class Names:
    """
    The names in use, and the value that each name stands for at the current point of the program.

    Args:
        reserved: names that values must not have.
        rename: function to apply to hints.
    """

    def __init__(self, reserved: Collection[str] = (), rename: Callable[[str], str] = str) -> None:
        self._reserved, self._rename = frozenset(reserved), rename
        self._lists: dict[Named, tuple[NamedList, int]] = {}
        self._names: dict[Named, str] = {}
        self._holders: dict[str, Named | None] = {}
        self._counts: dict[str, int] = {}
        self._unnamed = 0

    def __getitem__(self, value: Named) -> str:
        return self._names[value]

    def new(self, value: Named, default: str | None = None) -> str:
        """Name `value` after its hint, else after `default`, else by a number."""
        hint = value.name_hint or default
        if hint is None:
            hint, self._unnamed = f"v{self._unnamed}", self._unnamed + 1
        return self._hold(value, self._unused(identifier(self._rename(hint))))

    def new_list(self, values: Sequence[Named], label: str, prefix: str = "") -> str:
        """Name a list of values, whose names become elements of the list."""
        name = self.beside(f"{prefix}.{label}" if prefix else label)
        self.enter_list(NamedList(name, list(values), label))
        return name

    def enter_table(self, text: str, lists: Sequence[Sequence[Named]], label: str, *, variable: bool = True) -> None:
        """Name values as elements of lists that are elements of the list `text`."""
        for number, values in enumerate(lists):
            self.enter_list(NamedList(f"{text}[{number}]", list(values), label, variable, (text, number)))

    def enter_list(self, named: NamedList) -> None:
        """Name values as elements of a list."""
        for index, value in enumerate(named.values):
            self._hold(value, f"{named.text}[{index}]")
            self._lists[value] = named, index

    def list_of(self, value: Named) -> NamedList | None:
        """Return the list that a value is named as an element of, or None if it is a variable."""
        return self._lists[value][0] if value in self._lists else None

    def whole_list(self, values: Sequence[Named]) -> NamedList | None:
        """Return the list that consists of exactly these values in this order, or None."""
        named = self.list_of(values[0]) if values else None
        return named if named is not None and named.values == list(values) else None

    def variable(self, value: Named) -> str:
        """Return the variable that holds a value, possibly as an element of a list."""
        named = self.list_of(value)
        return named.text if named is not None else self[value]

    def listed(self, values: Sequence[Named]) -> list[str]:
        """
        Return the names of values.

        Consecutive elements of a list become a slice, `*h_3_saved[2:]`. Many texts for the same elements of consecutive
        lists become one, `*rt.from_each(h[1:12], 2, 4, 6)`.
        """
        rows = [list(row) for _, row in groupby(values, self.list_of)]

        def form(at: int) -> object:
            """Return a key that is equal for the same elements of consecutive lists, or None."""
            named = self.list_of(rows[at][0])
            return named and named.table and (named.table[0], named.table[1] - at, tuple(self._places(rows[at])))

        texts: list[str] = []
        for key, numbers in groupby(range(len(rows)), form):
            equal = [rows[at] for at in numbers]
            single = [text for row in equal for text in self._row(row)]
            texts += [self._rows(equal)] if key is not None and len(single) > _MOST_TEXTS else single
        return texts

    def _places(self, values: Sequence[Named]) -> list[int]:
        """Return the places of elements in their list."""
        return [self._lists[value][1] for value in values]

    def _row(self, values: Sequence[Named]) -> Iterator[str]:
        """Yield the texts of variables, or of elements of one list."""
        if (named := self.list_of(values[0])) is None:
            yield from (self[value] for value in values)
            return
        for run in _runs(self._places(values)):
            yield f"*{named.text}{_subscript(run, len(named.values))}" if len(run) > 1 else f"{named.text}[{run[0]}]"

    def _rows(self, rows: Sequence[Sequence[Named]]) -> str:
        """Return the text of the same elements of consecutive lists."""
        (named, _), places = self._lists[rows[0][0]], self._places(rows[0])
        assert named.table is not None, "the list is in a list"
        name, begin = named.table
        lists = f"{name}[{begin or ''}:{begin + len(rows)}]"
        chosen = places if places != list(range(len(named.values))) else []
        return f"*rt.from_each({', '.join([lists, *map(str, chosen)])})"

    def beside(self, hint: str) -> str:
        """Reserve a name for a variable that is not a value of the IR."""
        name = self._unused(identifier(hint))
        self._holders[name] = None
        return name

    def forget(self, names: Collection[str]) -> None:
        """Make names available that no longer stand for anything."""
        for name in names:
            del self._holders[name]
            self._counts.pop(name, None)

    def share(self, value: Named, other: Named) -> str:
        """Give `value` the name of `other`, which is not read again."""
        if (place := self._lists.get(other)) is not None:
            named, index = self._lists[value] = place
            named.values[index] = value
        return self._hold(value, self._names[other])

    def holds(self, value: Named) -> bool:
        """Return whether the name of `value` still stands for it."""
        return (name := self._names.get(value)) is not None and self._holders.get(name) == value

    def release(self, value: Named) -> None:
        """Make the name of `value`, which is not read again, available; all elements of a variable are released."""
        if (named := self.list_of(value)) is None:
            self.forget([self._names[value]] if self.holds(value) else [])
            return
        elements = named.values if named.variable else [value]
        for element in elements:
            self._lists.pop(element, None)
        self.forget([self._names[element] for element in elements])
        self.forget([named.text] if named.text in self._holders else [])

    def is_argument(self, value: Named) -> bool:
        """Return whether a value is named as an element of a list of arguments, whose other elements may stay alive."""
        return (named := self.list_of(value)) is not None and not named.variable

    def _hold(self, value: Named, name: str) -> str:
        self._names[value], self._holders[name] = name, value
        return name

    def _unused(self, base: str) -> str:
        name, count = base, self._counts.get(base, 0)
        while name in self._holders or name in self._reserved:
            count += 1
            name = f"{base}_{count}"
        self._counts[base] = count
        return name


def _runs(places: Sequence[int]) -> Iterator[range]:
    """Yield ranges that have these places in turn. Each is a slice, upwards or downwards, or has a single place."""
    begin = 0
    while begin < len(places):
        step = places[begin + 1] - places[begin] if begin + 1 < len(places) else 0
        end = begin + 1
        while abs(step) == 1 and end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        if end - begin < _SHORTEST_SLICE:
            step, end = 1, begin + 1
        yield range(places[begin], places[end - 1] + step, step)
        begin = end


def _subscript(places: range, size: int) -> str:
    """Return the slice of a list of `size` elements; empty for the whole list."""
    first, last = places[0], places[-1]
    if places.step < 0:
        return f"[{first if first + 1 < size else ''}:{last - 1 if last else ''}:-1]"
    text = f"{first or ''}:{last + 1 if last + 1 < size else ''}"
    return f"[{text}]" if text != ":" else ""


def identifier(hint: str) -> str:
    """Return `hint` as a Python identifier that does not shadow a name that the program uses."""
    name = re.sub(r"\W", "_", hint[:_MOST], flags=re.ASCII)
    name = name if not name[:1].isdigit() else f"v_{name}"
    return f"{name}_" if name in _RESERVED else name


def base_name(value: SSAValue) -> str | None:
    """Return the hint of `value` without the suffixes of its versions: numbers and collectives."""
    return None if value.name_hint is None else _FORM.sub("", value.name_hint)
