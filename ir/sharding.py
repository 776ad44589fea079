"""
Shardings: how one value is spread over a mesh.

On each mesh axis a value is split along one of its dims, replicated, or partial (the value is the reduction, over
the axis, of the devices' values). The notation is Shardy's: for each dim the axes that split it, major to
minor, and the set of partial axes. A split is even unless it carries offsets, the boundaries of its parts
along the dim. An even split of n into k parts has the boundaries floor(i*n/k), so gathering the minor
axis of a split leaves exactly the boundaries of the major axis.

Text form: `[{"dp"}, {}], unreduced={"tp"}, offsets={0: [0, 1, 4]}`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import NoReturn, Protocol, TypeVar

from .interned import Interned
from .mesh import Mesh, axis_name_fault


class Reduction(StrEnum):
    """The reduction that combines the parts of a partial value."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


Offsets = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class DimSharding(metaclass=Interned):
    """The axes that split one dim, major to minor, and the parts' boundaries if the split is not even."""

    axes: tuple[str, ...] = ()
    offsets: Offsets | None = None

    def boundaries(self, size: int, mesh: Mesh) -> Offsets:
        """Return the boundaries of the parts of a dim of `size`: one more number than there are parts."""
        return self.offsets if self.offsets is not None else even_offsets(size, mesh.parts(self.axes))


@dataclass(frozen=True, eq=False)
class Sharding(metaclass=Interned):
    """The sharding of a value of rank `len(dims)`. `partial` pairs axes with their reduction, in mesh order."""

    dims: tuple[DimSharding, ...]
    partial: tuple[tuple[str, Reduction], ...] = ()

    @staticmethod
    def replicated(rank: int) -> Sharding:
        """Return the sharding under which every device holds the full value, of `rank` dims."""
        return Sharding((DimSharding(),) * rank)

    @staticmethod
    def of(dims: Iterable[Iterable[str]], partial: Mapping[str, Reduction] | None = None) -> Sharding:
        """Return an even sharding from the axes of each dim."""
        return Sharding(tuple(DimSharding(tuple(axes)) for axes in dims), tuple((partial or {}).items()))

    @property
    def is_replicated(self) -> bool:
        """Whether the value is replicated on every axis."""
        return not self.partial and all(not dim.axes for dim in self.dims)

    @property
    def partial_axes(self) -> tuple[str, ...]:
        """The axes over which the value is still to be reduced."""
        return tuple(axis for axis, _ in self.partial)

    @property
    def split_axes(self) -> tuple[str, ...]:
        """The axes that split some dim, in the order of the dims."""
        return tuple(axis for dim in self.dims for axis in dim.axes)

    def over_time(self, mesh: Mesh) -> Sharding:
        """Return the restriction to the temporal axes of `mesh`, without offsets."""
        spatial = {axis.name for axis in mesh.spatial}
        dims = (DimSharding(tuple(axis for axis in dim.axes if axis not in spatial)) for dim in self.dims)
        return Sharding(tuple(dims), tuple(pair for pair in self.partial if pair[0] not in spatial))

    def verify(self, mesh: Mesh, shape: Sequence[int] | None = None) -> None:
        """Raise ValueError, naming the axis or dim at fault, unless this is a sharding of `shape` on `mesh`."""
        used = [*self.split_axes, *self.partial_axes]
        for axis in used:
            mesh.axis(axis)
            if used.count(axis) > 1:
                raise ValueError(f'sharding {self} uses axis "{axis}" {used.count(axis)} times, expected once')
        if shape is None:
            return
        if len(shape) != len(self.dims):
            raise ValueError(f"sharding {self} has {len(self.dims)} dims, the value has {len(shape)}")
        for index, (dim, size) in enumerate(zip(self.dims, shape, strict=True)):
            _verify_dim(self, index, dim, size, mesh.parts(dim.axes))

    def __str__(self) -> str:
        dims = ", ".join("{" + ", ".join(f'"{a}"' for a in dim.axes) + "}" for dim in self.dims)
        text = f"[{dims}]"
        if self.partial:
            parts = (f'"{a}"' + ("" if r is Reduction.SUM else f" {r}") for a, r in self.partial)
            text += f", unreduced={{{', '.join(parts)}}}"
        uneven = [f"{i}: {list(d.offsets)}" for i, d in enumerate(self.dims) if d.offsets is not None]
        return text + (f", offsets={{{', '.join(uneven)}}}" if uneven else "")


def _verify_dim(sharding: Sharding, index: int, dim: DimSharding, size: int, parts: int) -> None:
    if dim.offsets is None:
        if parts > size and parts > 1:
            raise ValueError(
                f"sharding {sharding} splits dim {index} of size {size} evenly into {parts} parts;"
                f" an even split needs a size of at least {parts} (explicit offsets may leave parts empty)"
            )
        return
    offsets = dim.offsets
    ordered = all(a <= b for a, b in itertools.pairwise(offsets))
    if len(offsets) != parts + 1 or offsets[0] != 0 or offsets[-1] != size or not ordered:
        raise ValueError(
            f"sharding {sharding}: offsets {list(offsets)} of dim {index} must be {parts + 1} ascending numbers"
            f" from 0 to the dim's size {size}"
        )


@lru_cache(maxsize=65536)
def even_offsets(size: int, parts: int) -> Offsets:
    """Return the boundaries floor(i * size / parts) of an even split."""
    return tuple(i * size // parts for i in range(parts + 1))


def dim_sharding(axes: tuple[str, ...], offsets: Offsets, size: int, mesh: Mesh) -> DimSharding:
    """Return the canonical split with these boundaries: without offsets if it is even and leaves no part empty."""
    parts = mesh.parts(axes)
    even = offsets == even_offsets(size, parts) and size >= parts
    return DimSharding(axes, None if even else offsets)


def major(dim: DimSharding, count: int, size: int, mesh: Mesh) -> DimSharding:
    """Return the split of a dim of `size` by the first `count` of its axes: the result of gathering the others."""
    kept = dim.axes[:count]
    return dim_sharding(kept, dim.boundaries(size, mesh)[:: mesh.parts(dim.axes[count:])], size, mesh)


def with_dim(sharding: Sharding, dim: int, spread: DimSharding) -> Sharding:
    """Return `sharding` with another split of one dim."""
    return replace(sharding, dims=(*sharding.dims[:dim], spread, *sharding.dims[dim + 1 :]))


def local_slices(shape: Sequence[int], sharding: Sharding, mesh: Mesh, rank: int) -> tuple[slice, ...]:
    """Return the part of a value of global `shape` that `rank` holds, as one slice per dim."""
    slices: list[slice] = []
    for size, dim in zip(shape, sharding.dims, strict=True):
        if not dim.axes:
            slices.append(slice(0, size))
            continue
        boundaries, part = dim.boundaries(size, mesh), mesh.part(rank, dim.axes)
        slices.append(slice(boundaries[part], boundaries[part + 1]))
    return tuple(slices)


def local_shape(shape: Sequence[int], sharding: Sharding, mesh: Mesh, rank: int) -> tuple[int, ...]:
    """Return the shape of the part of a value of global `shape` that `rank` holds."""
    return tuple(s.stop - s.start for s in local_slices(shape, sharding, mesh, rank))


@lru_cache(maxsize=1024)
def rank_extents(size: int, dim: DimSharding, mesh: Mesh) -> tuple[int, ...]:
    """Return, for each rank, the size of its part of a dim of `size`."""
    extents = [end - begin for begin, end in itertools.pairwise(dim.boundaries(size, mesh))]
    return tuple(extents[part] for part in mesh.rank_parts(dim.axes))


@lru_cache(maxsize=65536)
def largest_local_shape(shape: tuple[int, ...], sharding: Sharding, mesh: Mesh) -> tuple[int, ...]:
    """Return the size of the largest part of each dim, as for padded collectives or the slowest device."""
    return tuple(
        largest_part(size, dim, mesh) if dim.axes else size for size, dim in zip(shape, sharding.dims, strict=True)
    )


def largest_part(size: int, dim: DimSharding, mesh: Mesh) -> int:
    """Return the size of the largest part of a dim of `size`."""
    if dim.offsets is None:
        return math.ceil(size / mesh.parts(dim.axes))
    return max(b - a for a, b in zip(dim.offsets, dim.offsets[1:], strict=False))


_Item = TypeVar("_Item")


class ShardingTokens(Protocol):
    """The tokens that the grammar of shardings reads, from a text or from an attribute in a file of IR."""

    def accept(self, mark: str) -> bool:
        """Take a punctuation mark if it comes next, and return whether it did."""
        ...

    def keyword(self, words: Iterable[str]) -> str | None:
        """Take the word of `words` that comes next, and return it, or None if no such word comes next."""
        ...

    def expect(self, mark: str) -> None:
        """Take a punctuation mark."""
        ...

    def listed(self, brackets: str, item: Callable[[], _Item]) -> list[_Item]:
        """Take items between a pair of brackets, separated by commas."""
        ...

    def axis(self) -> str:
        """Take the name of an axis, in quotes."""
        ...

    def number(self) -> int:
        """Take a number, 0 or above."""
        ...

    def fail(self, message: str) -> NoReturn:
        """Raise an error of this kind of tokens, at the current place."""
        ...


def read_dims(tokens: ShardingTokens) -> list[tuple[str, ...]]:
    """Read `[{"dp"}, {}]`: by dim, the axes that split it."""
    return tokens.listed("[]", lambda: tuple(tokens.listed("{}", tokens.axis)))


def read_shardings(tokens: ShardingTokens) -> list[Sharding]:
    """
    Read shardings separated by commas.

        sharding  ::= dims ("," (unreduced | offsets))*
        unreduced ::= "unreduced" "=" "{" (axis reduction?)* "}"
        offsets   ::= "offsets" "=" "{" (dim ":" "[" number* "]")* "}"
    """
    shardings: list[Sharding] = []
    more = True
    while more:
        dims, more = read_dims(tokens), False
        partial: list[tuple[str, Reduction]] = []
        offsets: dict[int, Offsets] = {}
        while not more and tokens.accept(","):
            keyword = tokens.keyword(("unreduced", "offsets"))
            if keyword == "unreduced":
                tokens.expect("=")
                partial = tokens.listed("{}", lambda: (tokens.axis(), _read_reduction(tokens)))
            elif keyword == "offsets":
                tokens.expect("=")
                offsets = dict(tokens.listed("{}", lambda: _read_offsets(tokens)))
            else:
                more = True
        if (stray := max(offsets, default=0)) >= max(len(dims), 1):
            tokens.fail(f"offsets are of dim {stray}, the sharding has {len(dims)} dims")
        spread = tuple(DimSharding(axes, offsets.get(i)) for i, axes in enumerate(dims))
        shardings.append(Sharding(spread, tuple(partial)))
    return shardings


def _read_reduction(tokens: ShardingTokens) -> Reduction:
    return Reduction(tokens.keyword(Reduction) or Reduction.SUM)


def _read_offsets(tokens: ShardingTokens) -> tuple[int, Offsets]:
    dim = tokens.number()
    tokens.expect(":")
    return dim, tuple(tokens.listed("[]", tokens.number))


_TOKEN = re.compile(r'\s*(?:(?P<string>"[^"\n]*")|(?P<number>\d+)|(?P<word>[a-z]+)|(?P<mark>[\[\]{},:=]))')


class _TextTokens:
    """The tokens of a sharding's text form."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, at = text, list[str](), 0
        text = text.rstrip()
        while at < len(text):
            if (match := _TOKEN.match(text, at)) is None:
                self.fail(f"unexpected {text[at:].strip()[:10]!r}")
            self.tokens.append(match.group().strip())
            at = match.end()
        self.tokens.append("")

    def fail(self, message: str) -> NoReturn:
        raise ValueError(f"sharding '{self.text}': {message}; expected a form like [{{\"dp\"}}, {{}}]")

    def take(self) -> str:
        return self.tokens.pop(0)

    def accept(self, mark: str) -> bool:
        return self.tokens[0] == mark and bool(self.take())

    def keyword(self, words: Iterable[str]) -> str | None:
        return self.take() if self.tokens[0] in tuple(words) else None

    def expect(self, mark: str) -> None:
        if (found := self.take()) != mark:
            self.fail(f"found {found or 'the end'!r}, expected {mark!r}")

    def listed(self, brackets: str, item: Callable[[], _Item]) -> list[_Item]:
        opening, closing = brackets
        self.expect(opening)
        if self.accept(closing):
            return []
        items = [item()]
        while self.accept(","):
            items.append(item())
        self.expect(closing)
        return items

    def axis(self) -> str:
        if not (token := self.take()).startswith('"'):
            self.fail(f"found {token or 'the end'!r}, expected an axis name in quotes")
        if (fault := axis_name_fault(token[1:-1])) is not None:
            self.fail(fault)
        return token[1:-1]

    def number(self) -> int:
        if not (token := self.take()).isdigit():
            self.fail(f"found {token or 'the end'!r}, expected a number")
        return int(token)


def parse_sharding(text: str) -> Sharding:
    """Read the text form; ValueError names the text found and the text expected."""
    tokens = _TextTokens(text)
    sharding, *others = read_shardings(tokens)
    if others:
        tokens.fail(f"found {len(others) + 1} shardings, expected one")
    tokens.expect("")
    return sharding
