"""Python names for the values of a program: valid, unique, and as close as can be to the names in the IR."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.ir import SSAValue

from ...ir.collectives import CollectiveKind

_MOST = 200
"""Characters of a name."""

_AMBIGUOUS = {"l", "O", "I"}
_PROGRAM = {"MESH", "PLAN", "SIZES", "aten", "comm", "n", "rt", "torch"}
_FORM = re.compile(rf"([._](\d+|{'|'.join(CollectiveKind)}))+$")
_RESERVED = {*keyword.kwlist, *dir(builtins), *_AMBIGUOUS, *_PROGRAM, "_"}


@dataclass(frozen=True)
class PartOf:
    """What a value that is made part by part is at one of the parts."""

    value: SSAValue
    part: int

    @property
    def name_hint(self) -> str:
        """That of the value, with the part."""
        return f"{self.value.name_hint or 'value'}.{self.part}"


Named: TypeAlias = SSAValue | PartOf


class Names:
    """
    The names given so far, and which value each of them stands for at this point of the program.

    Args:
        reserved: names that no value may have.
    """

    def __init__(self, reserved: Collection[str] = ()) -> None:
        self._reserved = frozenset(reserved)
        self._names: dict[Named, str] = {}
        self._holders: dict[str, Named | None] = {}
        self._counts: dict[str, int] = {}
        self._unnamed = 0

    def __getitem__(self, value: Named) -> str:
        return self._names[value]

    def new(self, value: Named, default: str | None = None) -> str:
        """Name `value` after its hint, or `default`, or by number."""
        hint = value.name_hint or default
        if hint is None:
            hint, self._unnamed = f"v{self._unnamed}", self._unnamed + 1
        return self._hold(value, self._unused(identifier(hint)))

    def beside(self, hint: str) -> str:
        """A name for what is no value of the IR."""
        name = self._unused(identifier(hint))
        self._holders[name] = None
        return name

    def share(self, value: Named, other: Named) -> str:
        """Give `value` the name of `other`, which is not read again."""
        return self._hold(value, self._names[other])

    def holds(self, value: Named) -> bool:
        """Whether the name of `value` still stands for it."""
        return (name := self._names.get(value)) is not None and self._holders.get(name) == value

    def release(self, value: Named) -> None:
        """Let another value have the name of `value`, which is not read again."""
        if self.holds(value):
            name = self._names[value]
            del self._holders[name]
            self._counts.pop(name, None)

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


def identifier(hint: str) -> str:
    """`hint` as a Python identifier that hides nothing the program needs."""
    name = re.sub(r"\W", "_", hint[:_MOST], flags=re.ASCII)
    name = name if not name[:1].isdigit() else f"v_{name}"
    return f"{name}_" if name in _RESERVED else name


def base_name(value: SSAValue) -> str | None:
    """The hint of `value` without what tells it from its earlier forms: numbers and collectives."""
    return None if value.name_hint is None else _FORM.sub("", value.name_hint)
