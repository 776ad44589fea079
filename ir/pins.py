"""
Pins: what a user has decided on, and what that means for the sharding of one value and the signature of one op.

`Pin` is an entry of a pin file: a glob of values with their sharding, or a preset. `passes/search/pins.py` resolves
entries to `ShardingLimit`s of values and `SignatureLimit`s of ops, which the IR holds and every search obeys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from .sharding import DimSharding, Sharding
from .signatures import Signature

_Entry = TypeVar("_Entry")

PRESETS = ("dp", "zero1", "zero2", "zero3", "tp")

Placement = str | tuple[str, int]
"""The part of a sharding that is of one axis: "R" (replicated), "P" (partial) or ("S", dim) (split along dim)."""

ANY = "any"
"""In the place of a placement: there is no limit on the value."""


def placement(sharding: Sharding, axis: str) -> Placement:
    """The placement of a value with `sharding` on `axis`."""
    for dim, spread in enumerate(sharding.dims):
        if axis in spread.axes:
            return ("S", dim)
    return "P" if axis in sharding.partial_axes else "R"


@dataclass(frozen=True)
class Pin:
    """
    One entry of a pin file: a sharding for the values that match a glob, or a preset.

    Args:
        axes: those that a preset is for; None for all axes of devices.
        place: file and line of the entry, for messages.
    """

    value: str = ""
    sharding: Sharding | None = None
    preset: str = ""
    axes: tuple[str, ...] | None = None
    place: str = field(default="", compare=False)

    def __str__(self) -> str:
        """The pin for messages: `pins.toml:3: pin 'h.*.weight'`."""
        name = f"pin preset '{self.preset}'" if self.preset else f"pin '{self.value}'"
        return f"{self.place}: {name}" if self.place else name


@dataclass(frozen=True)
class ShardingLimit:
    """
    Which shardings a value may have.

    Args:
        sharding: the only one; where it has no offsets, those of the ratios are allowed.
        axes: per axis the placements that are allowed. An axis may be listed several times; all must hold.
        by: the indices of the pins that ask for it, in the list of the function.
    """

    sharding: Sharding | None = None
    axes: tuple[tuple[str, frozenset[Placement]], ...] = ()
    by: tuple[int, ...] = field(default=(), compare=False)

    def allows(self, given: Sharding) -> bool:
        """Whether `given` is one of the shardings."""
        if self.sharding is not None and not is_as_pinned(given, self.sharding):
            return False
        return all(placement(given, axis) in allowed for axis, allowed in self.axes)

    def with_axes(self, axes: Iterable[tuple[str, frozenset[Placement]]], by: tuple[int, ...]) -> ShardingLimit:
        """The limit with placements of further axes."""
        added = tuple(each for each in axes if each not in self.axes)
        return replace(self, axes=(*self.axes, *added), by=_united(self.by, by))

    def and_also(self, other: ShardingLimit) -> ShardingLimit:
        """Both limits; a sharding that is given in full wins over placements of axes."""
        if self.sharding is not None or other.sharding is not None:
            return self if self.sharding is not None else other
        return self.with_axes(other.axes, other.by)


@dataclass(frozen=True)
class OpPlacements:
    """The placements of an op's operands and results on one axis."""

    axis: str
    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]

    def matches(self, given: Signature) -> Iterator[bool]:
        """For every operand, then every result, whether its placement is this one."""
        pairs = chain(zip(given.operands, self.operands, strict=True), zip(given.results, self.results, strict=True))
        return (placement(each, self.axis) == wanted for each, wanted in pairs)


@dataclass(frozen=True)
class SignatureLimit:
    """
    Which signatures an op may have.

    Args:
        axes: the placements of its values on some axes.
        never: on some axes, a split that each value must not have, `ANY` for none.
        operands: the limits of single operands.
        signature: the only one; where it has no offsets, those of the ratios are allowed.
        takes_partial: whether operands may be partial values.
        by: the indices of the pins that ask for it, in the list of the function.
    """

    axes: tuple[OpPlacements, ...] = ()
    never: tuple[OpPlacements, ...] = ()
    operands: tuple[tuple[int, ShardingLimit], ...] = ()
    signature: Signature | None = None
    takes_partial: bool = True
    by: tuple[int, ...] = field(default=(), compare=False)

    def allows(self, given: Signature) -> bool:
        """Whether `given` is one of the signatures."""
        if not self.takes_partial and any(sharding.partial for sharding in given.operands):
            return False
        if not all(all(each.matches(given)) for each in self.axes):
            return False
        if any(any(each.matches(given)) for each in self.never):
            return False
        if self.signature is not None and not is_same(given, self.signature):
            return False
        return all(limit.allows(given.operands[index]) for index, limit in self.operands)

    @property
    def is_exact(self) -> bool:
        """Whether the signature, or the sharding of an operand, is given in full."""
        return self.signature is not None or any(limit.sharding is not None for _, limit in self.operands)

    def and_also(self, other: SignatureLimit) -> SignatureLimit:
        """Both limits; shardings that are given in full win over placements of axes."""
        if self.is_exact != other.is_exact:
            return self if self.is_exact else other
        return SignatureLimit(
            _united(self.axes, other.axes),
            _united(self.never, other.never),
            _united(self.operands, other.operands),
            self.signature or other.signature,
            self.takes_partial and other.takes_partial,
            _united(self.by, other.by),
        )


@dataclass(frozen=True)
class Copy:
    """
    Which shardings the working copy of a value may have.

    Args:
        regathered: whether the copy is made again for backward.
    """

    limit: ShardingLimit
    regathered: bool = False


@dataclass(frozen=True)
class ValuePin:
    """What is pinned of an argument, or of a value that another stage sends: where it is kept, and its working copy."""

    limit: ShardingLimit | None = None
    copy: Copy | None = None

    @property
    def by(self) -> tuple[int, ...]:
        """The pins that ask for it; none where it was written into the IR by hand."""
        return _united(self.limit.by if self.limit else (), self.copy.limit.by if self.copy else ())


@dataclass(frozen=True)
class OpPin:
    """What is pinned of an op: its signature, and by index the working copies of its results."""

    limit: SignatureLimit | None = None
    copies: tuple[tuple[int, Copy], ...] = ()

    @property
    def by(self) -> tuple[int, ...]:
        """The pins that ask for it; none where it was written into the IR by hand."""
        found = self.limit.by if self.limit else ()
        for _, copy in self.copies:
            found = _united(found, copy.limit.by)
        return found


def _united(one: tuple[_Entry, ...], other: tuple[_Entry, ...]) -> tuple[_Entry, ...]:
    return tuple(dict.fromkeys((*one, *other)))


def is_same(given: Signature | Sharding, wanted: Signature | Sharding) -> bool:
    """Whether one is the other; where the expected one has no offsets, those of the ratios are allowed."""
    if isinstance(given, Sharding) or isinstance(wanted, Sharding):
        return isinstance(given, Sharding) and isinstance(wanted, Sharding) and is_as_pinned(given, wanted)
    pairs = zip((*given.operands, *given.results), (*wanted.operands, *wanted.results), strict=True)
    return all(is_as_pinned(one, other) for one, other in pairs)


def is_as_pinned(sharding: Sharding, pinned: Sharding) -> bool:
    """Whether a sharding is the pinned one; where that has no offsets, those of the ratios are allowed."""
    pairs = zip(sharding.dims, pinned.dims, strict=True)
    dims = tuple(dim if wanted.offsets else DimSharding(dim.axes) for dim, wanted in pairs)
    return replace(sharding, dims=dims) == pinned
