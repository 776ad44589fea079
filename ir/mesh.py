"""
Meshes: the named axes along which a cluster, or time, is divided.

A rank's place in the mesh is its coordinates on the spatial axes, row-major in the order of the axes (the
last axis varies fastest). A *temporal* axis (micro-batches) divides time on the same devices and adds no
ranks.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache

from .interned import Interned


class AxisKind(StrEnum):
    """Whether the parts of an axis are different devices or different times on one device."""

    SPATIAL = "spatial"
    TEMPORAL = "temporal"


def axis_name_fault(name: str) -> str | None:
    """Return the fault of an axis name, which generated programs use as an identifier, or None if it is valid."""
    if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name) or len(name) > 100:
        cut = name if len(name) <= 40 else f"{name[:40]}..."
        return f"axis {cut!r} has a bad name, expected ASCII letters, digits and _, as gpu, and no keyword of Python"
    return None


MOST_DEVICES = 2**14
"""Upper limit of the devices of a mesh, since there are tables by rank and by group."""

MOST_PARTS = 2**12
"""Upper limit of the parts into which temporal axes divide a step, since a schedule lists them for every stage."""

MOST_AXES = 16


def _shown(number: int) -> str:
    """Return the text of a number for a message; Python cannot print thousands of digits."""
    return str(number) if number < 10**30 else "more than 10**30"


@dataclass(frozen=True, eq=False)
class Axis(metaclass=Interned):
    """One named axis of `size` parts."""

    name: str
    size: int
    kind: AxisKind = AxisKind.SPATIAL

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a mesh axis needs a name")
        # Equal axes are one object, so no axis may have the size 2.0 or True.
        if type(self.size) is not int:
            raise ValueError(f'mesh axis "{self.name}" has size {self.size!r}, expected a whole number')
        if self.size < 1:
            raise ValueError(f'mesh axis "{self.name}" has size {self.size}, expected at least 1')


@dataclass(frozen=True, eq=False)
class Mesh(metaclass=Interned):
    """An ordered set of axes, major to minor."""

    axes: tuple[Axis, ...]
    name: str = "mesh"

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f'mesh @{self.name} names axis "{repeated[0]}" twice')
        if len(names) > MOST_AXES:
            raise ValueError(f"mesh @{self.name} has {len(names)} axes, expected at most {MOST_AXES}")
        if (count := self.device_count) > MOST_DEVICES:
            raise ValueError(f"mesh @{self.name} has {_shown(count)} devices, expected at most {MOST_DEVICES}")
        if (parts := math.prod(a.size for a in self.axes if a.kind is AxisKind.TEMPORAL)) > MOST_PARTS:
            raise ValueError(f"mesh @{self.name} has {_shown(parts)} parts of time, expected at most {MOST_PARTS}")

    @staticmethod
    def of(**sizes: int) -> Mesh:
        """Return a mesh of spatial axes: `Mesh.of(dp=2, tp=4)`."""
        return Mesh(tuple(Axis(name, size) for name, size in sizes.items()))

    def over(self, /, **parts: int) -> Mesh:
        """Return the mesh with temporal axes before its axes: `Mesh.of(dp=2).over(micro=4)`."""
        times = tuple(Axis(name, size, AxisKind.TEMPORAL) for name, size in parts.items())
        return Mesh((*times, *self.axes), self.name)

    @cached_property
    def spatial(self) -> tuple[Axis, ...]:
        """The axes whose parts are devices."""
        return tuple(axis for axis in self.axes if axis.kind is AxisKind.SPATIAL)

    @cached_property
    def _by_name(self) -> dict[str, Axis]:
        return {axis.name: axis for axis in self.axes}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The axis names, major to minor."""
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def device_count(self) -> int:
        """The number of ranks of the mesh."""
        return math.prod(axis.size for axis in self.spatial)

    def axis(self, name: str) -> Axis:
        """Return the axis called `name`; raise ValueError if there is none."""
        if (axis := self._by_name.get(name)) is None:
            known = ", ".join(f'"{axis.name}"={axis.size}' for axis in self.axes)
            raise ValueError(f'mesh @{self.name} has no axis "{name}"; its axes are {known or "none"}')
        return axis

    def parts(self, names: Iterable[str]) -> int:
        """Return the number of parts into which the axes `names` together divide a dim."""
        return math.prod(self.axis(name).size for name in names)

    def in_order(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return `names` in the mesh's order, major to minor."""
        return tuple(sorted(names, key=self.names.index))

    def orders(self, names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """
        Return the orders, major to minor, in which axes may divide one dim: the mesh's own first.

        On a mesh of three axes x, y and z, z may also come before x, as in a cycle. The matrices of a product with an
        axis for each of its factors are then split over (x, y), (y, z) and (z, x), and one collective over the minor
        axis gives each matrix the sharding that the product requires (2.5-D algorithms; AutoDDL 4.1).
        """
        usual = self.in_order(names)
        if len(self.spatial) != 3:
            return (usual,)
        first, between, last = (axis.name for axis in self.spatial)
        if between in usual or not {first, last}.issubset(usual):
            return (usual,)
        return usual, (*(name for name in usual if name != first), first)

    def merged(self, axes: Sequence[str], more: Iterable[str]) -> tuple[str, ...]:
        """Return axes that divide a dim, in one of their `orders`, with more axes inserted at their places."""
        minor = tuple(name for at, name in enumerate(axes) if self.in_order((*axes[:at], name))[-1:] != (name,))
        return (*self.in_order({*axes, *more}.difference(minor)), *minor)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinates of `rank` on every axis (0 on temporal axes)."""
        if not 0 <= rank < self.device_count:
            raise ValueError(f"rank {rank} is outside mesh @{self.name} of {self.device_count} devices")
        coordinates = {axis.name: 0 for axis in self.axes}
        for axis in reversed(self.spatial):
            rank, coordinates[axis.name] = divmod(rank, axis.size)
        return coordinates

    def rank(self, coordinates: dict[str, int]) -> int:
        """Return the rank at `coordinates`; this is the inverse of the method `coordinates`."""
        rank = 0
        for axis in self.spatial:
            rank = rank * axis.size + coordinates[axis.name]
        return rank

    def part(self, rank: int, names: Sequence[str]) -> int:
        """Return the number of the part that `rank` holds of a dim split along `names` (major to minor)."""
        coordinates = self.coordinates(rank)
        part = 0
        for name in names:
            part = part * self.axis(name).size + coordinates[name]
        return part

    def group(self, rank: int, names: Sequence[str]) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` only along `names`, in the order of their parts."""
        members: list[dict[str, int]] = [self.coordinates(rank)]
        for name in names:
            members = [{**place, name: i} for place in members for i in range(self.axis(name).size)]
        return tuple(self.rank(place) for place in members)

    def groups(self, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return all groups along `names`; every rank is in exactly one."""
        return _groups(self, tuple(names))

    def rank_parts(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return for every rank the number of the part that it holds of a dim split along `names`."""
        return _rank_parts(self, tuple(names))

    def __str__(self) -> str:
        axes = (f'"{a.name}"={a.size}' + (" temporal" if a.kind is AxisKind.TEMPORAL else "") for a in self.axes)
        return f"<[{', '.join(axes)}]>"


@lru_cache(maxsize=1024)
def _rank_parts(mesh: Mesh, names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(mesh.part(rank, names) for rank in range(mesh.device_count))


@lru_cache(maxsize=1024)
def _groups(mesh: Mesh, names: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    spatial = {axis.name for axis in mesh.spatial}
    members = _places(mesh, [name for name in names if mesh.axis(name).name in spatial])
    firsts = _places(mesh, [axis.name for axis in mesh.spatial if axis.name not in names])
    return tuple(tuple(first + member for member in members) for first in firsts)


def _places(mesh: Mesh, names: Sequence[str]) -> list[int]:
    """Return the ranks at 0 on all spatial axes outside of `names`, in the order of their parts along `names`."""
    strides: dict[str, int] = {}
    stride = 1
    for axis in reversed(mesh.spatial):
        strides[axis.name] = stride
        stride *= axis.size
    ranks = [0]
    for name in names:
        ranks = [rank + i * strides[name] for rank in ranks for i in range(mesh.axis(name).size)]
    return ranks


def parse_mesh(text: str) -> Mesh:
    """Read a mesh from a command line: `dp=2,tp=4`, or sizes alone, `2x4`, for axes a0, a1, ..."""
    axes: list[Axis] = []
    try:
        if "=" in text:
            for entry in text.split(","):
                name, size = entry.split("=")
                if (fault := axis_name_fault(name.strip())) is not None:
                    raise ValueError(fault)
                axes.append(Axis(name.strip(), int(size)))
        else:
            axes = [Axis(f"a{i}", int(size)) for i, size in enumerate(text.split("x"))]
    except ValueError as error:
        raise ValueError(f"mesh '{text}': {error}; expected sizes as '2x4' or named axes as 'dp=2,tp=4'") from error
    return Mesh(tuple(axes))
