"""
Pins: decisions of the user, and the resulting limits on the sharding of a value and the signature of an op.

`Pin` is an entry of a pin file: a glob of values with their sharding, or a preset. `passes/search/pins.py` resolves
entries to `ShardingLimit`s of values and `SignatureLimit`s of ops, which the IR holds and every search obeys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from .sharding import DimSharding, Sharding
from .signatures import Signature

_Entry = TypeVar("_Entry")

PRESETS = ("dp", "zero1", "zero2", "zero3", "tp")

Placement = str | tuple[str, int]
"""The placement of a value on one axis: "R" (replicated), "P" (partial) or ("S", dim) (split along dim)."""

ANY = "any"
"""Stands for a placement that is not limited."""


def placement(sharding: Sharding, axis: str) -> Placement:
    """Return the placement of a value with `sharding` on `axis`."""
    for dim, spread in enumerate(sharding.dims):
        if axis in spread.axes:
            return ("S", dim)
    return "P" if axis in sharding.partial_axes else "R"


@dataclass(frozen=True)
class Pin:
    """
    One entry of a pin file: a sharding for the values that match a glob, or a preset.

    Args:
        axes: axes of a preset, or None for all axes of devices.
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
    The shardings that a value may have.

    Args:
        sharding: the only allowed sharding; without offsets, it allows the offsets that follow from ratios.
        axes: allowed placements per axis. An axis may be listed several times; all entries must hold.
        by: indices of the pins that ask for the limit, in the function's list.
    """

    sharding: Sharding | None = None
    axes: tuple[tuple[str, frozenset[Placement]], ...] = ()
    by: tuple[int, ...] = field(default=(), compare=False)

    def allows(self, given: Sharding) -> bool:
        """Whether `given` is one of the allowed shardings."""
        if self.sharding is not None and not is_as_pinned(given, self.sharding):
            return False
        return all(placement(given, axis) in allowed for axis, allowed in self.axes)

    def and_also(self, other: ShardingLimit) -> ShardingLimit:
        """Return both limits as one; a full sharding takes precedence over placements of axes."""
        if self.sharding is not None or other.sharding is not None:
            return self if self.sharding is not None else other
        added = tuple(entry for entry in other.axes if entry not in self.axes)
        return replace(self, axes=(*self.axes, *added), by=_united(self.by, other.by))


@dataclass(frozen=True)
class OpPlacements:
    """The placements of an op's operands and results on one axis."""

    axis: str
    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]

    def matches(self, given: Signature) -> Iterator[bool]:
        """Yield for every operand, then every result, whether it has the listed placement."""
        pairs = chain(zip(given.operands, self.operands, strict=True), zip(given.results, self.results, strict=True))
        return (placement(sharding, self.axis) == wanted for sharding, wanted in pairs)


@dataclass(frozen=True)
class SignatureLimit:
    """
    The signatures that an op may have.

    Args:
        axes: required placements of its values on some axes.
        never: forbidden splits of its values on some axes; `ANY` forbids nothing.
        operands: limits of single operands.
        signature: the only allowed signature; without offsets, it allows the offsets that follow from ratios.
        takes_partial: whether operands may be partial values.
        by: indices of the pins that ask for the limit, in the function's list.
    """

    axes: tuple[OpPlacements, ...] = ()
    never: tuple[OpPlacements, ...] = ()
    operands: tuple[tuple[int, ShardingLimit], ...] = ()
    signature: Signature | None = None
    takes_partial: bool = True
    by: tuple[int, ...] = field(default=(), compare=False)

    def allows(self, given: Signature) -> bool:
        """Whether `given` is one of the allowed signatures."""
        if not self.takes_partial and any(sharding.partial for sharding in given.operands):
            return False
        if not all(all(placements.matches(given)) for placements in self.axes):
            return False
        if any(any(placements.matches(given)) for placements in self.never):
            return False
        if self.signature is not None and not is_same(given, self.signature):
            return False
        return all(limit.allows(given.operands[index]) for index, limit in self.operands)

    @property
    def is_exact(self) -> bool:
        """Whether a full signature, or the full sharding of an operand, is given."""
        return self.signature is not None or any(limit.sharding is not None for _, limit in self.operands)

    def and_also(self, other: SignatureLimit) -> SignatureLimit:
        """Return both limits as one; full shardings take precedence over placements of axes."""
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
    The shardings that the working copy of a value may have.

    Args:
        regathered: whether the copy is gathered again for backward.
    """

    limit: ShardingLimit
    regathered: bool = False


@dataclass(frozen=True)
class ValuePin:
    """The pins of an argument, or of a value that another stage sends: of its home, and of its working copy."""

    limit: ShardingLimit | None = None
    copy: Copy | None = None

    @property
    def by(self) -> tuple[int, ...]:
        """The indices of the pins that ask for it; empty for a pin that was written into the IR by hand."""
        return _united(self.limit.by if self.limit else (), self.copy.limit.by if self.copy else ())


@dataclass(frozen=True)
class OpPin:
    """The pins of an op: of its signature, and of its results' working copies by index."""

    limit: SignatureLimit | None = None
    copies: tuple[tuple[int, Copy], ...] = ()

    @property
    def by(self) -> tuple[int, ...]:
        """The indices of the pins that ask for it; empty for a pin that was written into the IR by hand."""
        indices = self.limit.by if self.limit else ()
        for _, copy in self.copies:
            indices = _united(indices, copy.limit.by)
        return indices


def _united(one: tuple[_Entry, ...], other: tuple[_Entry, ...]) -> tuple[_Entry, ...]:
    return tuple(dict.fromkeys((*one, *other)))


def is_same(given: Signature | Sharding, wanted: Signature | Sharding) -> bool:
    """Whether `given` equals `wanted`; if `wanted` has no offsets, the offsets that follow from ratios are allowed."""
    if isinstance(given, Sharding) or isinstance(wanted, Sharding):
        return isinstance(given, Sharding) and isinstance(wanted, Sharding) and is_as_pinned(given, wanted)
    pairs = zip((*given.operands, *given.results), (*wanted.operands, *wanted.results), strict=True)
    return all(is_as_pinned(one, other) for one, other in pairs)


def is_as_pinned(sharding: Sharding, pinned: Sharding) -> bool:
    """Whether `sharding` equals `pinned`; a dim that is pinned without offsets may have any offsets."""
    pairs = zip(sharding.dims, pinned.dims, strict=True)
    dims = tuple(dim if wanted.offsets else DimSharding(dim.axes) for dim, wanted in pairs)
    return replace(sharding, dims=dims) == pinned
