"""
Ratios: the share of each part of an axis in the dims that the axis splits (HAP 2.4, 5.1).

Shares are real numbers, sizes are integers: each size is rounded to the nearest integer, then the sizes with the
smallest error change until the sum is exact. Several axes that split one dim split it one after the other, major to
minor, so gathering the minor axes leaves the boundaries of the major axes. Without ratios, splits are the even splits
of `sharding`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .interned import Interned
from .mesh import Mesh
from .sharding import DimSharding, Offsets, Sharding, dim_sharding, even_offsets

TOLERANCE = 1e-6
"""Tolerance of the sum of an axis's shares, which is 1."""


@dataclass(frozen=True, eq=False)
class Ratios(metaclass=Interned):
    """The share of each part by axis, in order of axis names; axes that are not listed are split evenly."""

    shares: tuple[tuple[str, tuple[float, ...]], ...] = ()

    @staticmethod
    def of(shares: Mapping[str, Sequence[float]]) -> Ratios:
        """Return the ratios of some axes."""
        return Ratios(tuple((axis, tuple(map(float, given))) for axis, given in sorted(shares.items())))

    def __bool__(self) -> bool:
        return bool(self.shares)

    def on(self, axis: str) -> tuple[float, ...] | None:
        """Return the shares of the parts of `axis`, or None if it is split evenly."""
        return next((shares for name, shares in self.shares if name == axis), None)

    def split(self, axes: Sequence[str]) -> bool:
        """Whether one of `axes` has ratios."""
        return any(name in axes for name, _ in self.shares)

    def verify(self, mesh: Mesh) -> None:
        """Raise ValueError, naming the axis, unless each axis has one share per part that together make 1."""
        for axis, shares in self.shares:
            if len(shares) != (parts := mesh.axis(axis).size):
                raise ValueError(f'axis "{axis}" has {parts} parts, but {len(shares)} ratios: {list(shares)}')
            if wrong := [share for share in shares if not share >= 0 or math.isinf(share)]:
                raise ValueError(f'axis "{axis}" has a share of {wrong[0]}, expected a number of at least 0')
            if abs((total := math.fsum(shares)) - 1) > TOLERANCE:
                raise ValueError(f'the ratios {list(shares)} of axis "{axis}" sum to {total:g}, expected 1')


EVEN = Ratios()
"""Ratios that split every axis evenly."""


@lru_cache(maxsize=65536)
def boundaries(count: int, axes: tuple[str, ...], mesh: Mesh, ratios: Ratios = EVEN) -> Offsets:
    """
    Return the boundaries of the parts into which `axes`, major to minor, divide `count` elements.

    Parts may be empty. The boundaries of a prefix of the axes are among the boundaries of all axes.
    """
    run = tuple(itertools.takewhile(lambda axis: ratios.on(axis) is None, axes))
    if run == axes:
        return even_offsets(count, mesh.parts(axes))
    if run:
        coarse, rest = even_offsets(count, mesh.parts(run)), axes[len(run) :]
    else:
        coarse, rest = (0, *itertools.accumulate(rounded(count, ratios.on(axes[0]) or ()))), axes[1:]
    if not rest:
        return coarse
    fine = [0]
    for start, end in itertools.pairwise(coarse):
        fine += [start + boundary for boundary in boundaries(end - start, rest, mesh, ratios)[1:]]
    return tuple(fine)


def rounded(count: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Return integer sizes in the given proportions that sum to `count` (HAP 5.1)."""
    total = math.fsum(shares)
    exact = [count * share / total for share in shares]
    sizes = [math.floor(size + 0.5) for size in exact]
    while (excess := sum(sizes) - count) != 0:
        step = -1 if excess > 0 else 1
        able = [i for i, size in enumerate(sizes) if size + step >= 0 and exact[i] > 0]
        nearest = min(able, key=lambda i: abs(sizes[i] + step - exact[i]))
        sizes[nearest] += step
    return tuple(sizes)


@dataclass(frozen=True, eq=False)
class Splits(metaclass=Interned):
    """
    The division of the dims of one value, or of the factors of one op: `counts` holds the number of indivisible pieces
    of each dim, `ratios` the shares of the axes.

    A dim of fewer pieces than parts is divided by single elements instead.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    ratios: Ratios = EVEN

    @staticmethod
    def single(sizes: Sequence[int], ratios: Ratios = EVEN) -> Splits:
        """Return splits whose every element is a piece."""
        return Splits(tuple(sizes), tuple(sizes), ratios)

    def boundaries(self, index: int, axes: tuple[str, ...], mesh: Mesh) -> Offsets:
        """Return the boundaries, in elements, of the parts of dim `index` along `axes`."""
        size, count = self.sizes[index], self.counts[index]
        if count < mesh.parts(axes):
            count = size
        pieces, unit = boundaries(count, axes, mesh, self.ratios), size // max(count, 1)
        return pieces if unit == 1 else tuple(boundary * unit for boundary in pieces)

    def dim(self, index: int, axes: tuple[str, ...], mesh: Mesh) -> DimSharding:
        """Return the split of dim `index` along `axes`; if the dim is too small, an even split that does not verify."""
        if not axes:
            return DimSharding()
        size = self.sizes[index]
        if size < mesh.parts(axes) and not self.ratios.split(axes):
            return DimSharding(axes)
        return dim_sharding(axes, self.boundaries(index, axes, mesh), size, mesh)

    def sharding(self, like: Sharding, mesh: Mesh) -> Sharding:
        """Return the sharding with the axes of `like` and the boundaries of these splits."""
        dims = tuple(self.dim(index, dim.axes, mesh) for index, dim in enumerate(like.dims))
        return Sharding(dims, like.partial)

    def is_even(self, mesh: Mesh) -> bool:
        """Whether every split, along any axes, is the even split."""
        parts = mesh.parts(mesh.names)
        pairs = zip(self.sizes, self.counts, strict=True)
        return not self.ratios and all(size == count or not count % parts for size, count in pairs)
