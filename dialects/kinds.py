"""Kinds of attributes: constraints, with a description for error messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, FloatAttr, IntegerAttr, IntegerType, StringAttr, UnitAttr, i1
from xdsl.ir import Attribute

MOST_CHARACTERS = 10_000
"""Upper limit of the characters of a name."""

MOST = 2**31
"""Upper limit of counts and indices, and of numbers of stages, segments, groups and regions."""


@dataclass(frozen=True)
class Kind:
    """A constraint on an attribute, with a description for error messages."""

    words: str
    holds: Callable[[Attribute], bool]


def instance_of(words: str, *classes: type[Attribute]) -> Kind:
    """Return the kind of the attributes of one of these classes."""
    return Kind(words, lambda value: isinstance(value, classes))


def one_of(words: Iterable[str]) -> Kind:
    """Return the kind of text that is one of these words."""
    known = tuple(words)
    quoted = ", ".join(f'"{word}"' for word in known)
    return Kind(f"one of {quoted}", lambda value: isinstance(value, StringAttr) and value.data in known)


def list_of(kind: Kind, plural: str, count: int | None = None) -> Kind:
    """Return the kind of lists of `kind`, with `count` entries where it is given."""

    def holds(value: Attribute) -> bool:
        entries = entries_of(value)
        return entries is not None and count in (None, len(entries)) and all(map(kind.holds, entries))

    return Kind(f"a list of {plural}", holds)


def either(*kinds: Kind) -> Kind:
    """Return the kind of attributes that are of any of these kinds."""
    return Kind(" or ".join(kind.words for kind in kinds), lambda value: any(kind.holds(value) for kind in kinds))


def shown(value: Attribute) -> str:
    """Return an attribute's text for an error message, cut after 100 characters."""
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def entries_of(value: Attribute | None) -> tuple[Attribute, ...] | None:
    """Return the entries of a list, or None for a missing attribute or one of another type."""
    return cast("ArrayAttr[Attribute]", value).data if isinstance(value, ArrayAttr) else None


def is_count(value: Attribute) -> bool:
    """Whether an attribute is a whole number from 0 to `MOST`."""
    return (number := _integer(value)) is not None and 0 <= number < MOST and not is_flag(value)


def is_flag(value: Attribute) -> bool:
    """Whether an attribute is true or false."""
    return isinstance(value, IntegerAttr) and cast("IntegerAttr[IntegerType]", value).type == i1


def _integer(value: Attribute) -> int | None:
    return value.value.data if isinstance(value, IntegerAttr) else None


def _is_text(value: Attribute) -> bool:
    return isinstance(value, StringAttr) and len(value.data) <= MOST_CHARACTERS


def _is_number(value: Attribute) -> bool:
    if isinstance(value, FloatAttr):
        return math.isfinite(value.value.data)
    return (number := _integer(value)) is not None and abs(number) < 2**63


TEXT = Kind(f"text of at most {MOST_CHARACTERS} characters", _is_text)
UNIT = instance_of("nothing", UnitAttr)
COUNT = Kind("a whole number from 0", is_count)
FLAG = Kind("true or false", is_flag)
NUMBER = Kind("a finite number", _is_number)
WHOLE = Kind("a whole number", lambda value: _integer(value) is not None)
POSITIVE = Kind("a whole number from 1", lambda value: is_count(value) and _integer(value) != 0)
