"""
Collectives as steps between shardings: the effect of each on a sharding, and the steps that connect two shardings.

kind            from -> to                      meaning
all_reduce      partial -> replicated           every device gets the reduction
reduce_scatter  partial over axes -> dim split  every device gets its part of the reduction
all_gather      dim split -> dim replicated     every device gets the parts of all
all_to_all      dim a split -> dim b split      the split moves from one dim to another
                dim split -> dim split          the boundaries of its parts move, on the same axes
slice           dim replicated -> dim split     each device keeps its part (no communication)
partial         replicated -> partial           the first device keeps the value, the others hold zeros
                                                (no communication)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from .mesh import Mesh
from .ratios import Splits
from .sharding import DimSharding, Offsets, Reduction, Sharding, major, with_dim

ALONE_FROM_BYTES = 2 * 1024 * 1024
"""
A tensor of a bucket that has at least this size is reduced separately, in its own memory: on gloo the copy into the
bucket costs more than another collective (measured for 2 and 4 ranks; at half the size, the copy costs less).
"""


class CollectiveKind(StrEnum):
    """The kinds of steps between shardings."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"
    SLICE = "slice"
    PARTIAL = "partial"

    @property
    def is_local(self) -> bool:
        """Whether the kind sends no bytes."""
        return self in (CollectiveKind.SLICE, CollectiveKind.PARTIAL)


@dataclass(frozen=True)
class Step:
    """
    One collective over `axes`, from `source` to `target`; `dim` loses (gather) or gains (scatter, slice) the axes, and
    `to_dim` gains them in an all-to-all (it equals `dim` if only the boundaries of the dim move)."""

    kind: CollectiveKind
    axes: tuple[str, ...]
    source: Sharding
    target: Sharding
    dim: int | None = None
    to_dim: int | None = None
    reduction: Reduction = Reduction.SUM


@lru_cache(maxsize=65536)
def find_step(kind: CollectiveKind, source: Sharding, target: Sharding, mesh: Mesh) -> Step | None:
    """Return the step of `kind` from `source` to `target`, or None if there is none."""
    return next((s for s in _candidates(source, target, mesh) if s.kind is kind), None)


def single_step(source: Sharding, target: Sharding, mesh: Mesh) -> Step | None:
    """Return the single collective from `source` to `target`, or None if it takes several."""
    return next(_candidates(source, target, mesh), None)


def _candidates(source: Sharding, target: Sharding, mesh: Mesh) -> Iterator[Step]:
    if len(source.dims) != len(target.dims):
        return
    changed = [i for i, (a, b) in enumerate(zip(source.dims, target.dims, strict=True)) if a != b]
    gone = tuple(p for p in source.partial if p not in target.partial)
    come = tuple(p for p in target.partial if p not in source.partial)
    reductions = {kind for _, kind in (*gone, *come)}
    if len(reductions) > 1 or (gone and come) or len(changed) > 2:
        return
    reduction = next(iter(reductions), Reduction.SUM)
    axes = tuple(axis for axis, _ in (*gone, *come))
    if not changed:
        if gone:
            yield Step(CollectiveKind.ALL_REDUCE, axes, source, target, reduction=reduction)
        elif come and reduction is Reduction.SUM:
            yield Step(CollectiveKind.PARTIAL, axes, source, target)
    elif len(changed) == 1 and not come:
        yield from _one_dim(source, target, mesh, changed[0], axes, reduction)
    elif len(changed) == 2 and not gone and not come:
        for a, b in (changed, changed[::-1]):
            lost = _suffix(source.dims[a], target.dims[a], mesh)
            gained = _suffix(target.dims[b], source.dims[b], mesh)
            if lost and lost == gained:
                yield Step(CollectiveKind.ALL_TO_ALL, lost, source, target, a, b)


def _one_dim(
    source: Sharding, target: Sharding, mesh: Mesh, dim: int, axes: tuple[str, ...], reduction: Reduction
) -> Iterator[Step]:
    before, after = source.dims[dim], target.dims[dim]
    gained, lost = _suffix(after, before, mesh), _suffix(before, after, mesh)
    if axes and gained and set(gained) == set(axes):
        yield Step(CollectiveKind.REDUCE_SCATTER, gained, source, target, dim, reduction=reduction)
    elif not axes and gained:
        yield Step(CollectiveKind.SLICE, gained, source, target, dim)
    elif not axes and lost:
        yield Step(CollectiveKind.ALL_GATHER, lost, source, target, dim)
    elif not axes and before.axes == after.axes:
        yield _moved(source, target, dim, mesh)


def _moved(source: Sharding, target: Sharding, dim: int, mesh: Mesh) -> Step:
    """Return the step that moves the boundaries of a dim's parts, over as few minor axes as possible."""
    before, after = source.dims[dim], target.dims[dim]
    size = (before.offsets or after.offsets or (0,))[-1]
    count = len(before.axes) - 1
    while _coarse(before, count, size, mesh) != _coarse(after, count, size, mesh):
        count -= 1
    return Step(CollectiveKind.ALL_TO_ALL, before.axes[count:], source, target, dim, dim)


def _coarse(split: DimSharding, count: int, size: int, mesh: Mesh) -> Offsets:
    """Return the boundaries between the groups of parts that the first `count` axes of a split make."""
    return split.boundaries(size, mesh)[:: mesh.parts(split.axes[count:])]


def _suffix(longer: DimSharding, shorter: DimSharding, mesh: Mesh) -> tuple[str, ...]:
    """Return the minor axes that `longer` splits beyond `shorter`; empty unless `longer` refines `shorter`."""
    count = len(shorter.axes)
    if longer.axes[:count] != shorter.axes or len(longer.axes) == count:
        return ()
    # Even splits refine one another; uneven ones only if the parts of the coarser are full groups of finer parts.
    uneven = longer.offsets or shorter.offsets
    if count and uneven and _coarse(longer, count, uneven[-1], mesh) != shorter.boundaries(uneven[-1], mesh):
        return ()
    return longer.axes[count:]


def steps_from(source: Sharding, mesh: Mesh, splits: Splits | None = None) -> Iterator[Step]:
    """
    Yield every single step over spatial axes from `source` to another sharding.

    New splits have the boundaries of `splits`, or are even. Splits and partial values over temporal axes stay.
    """
    used = {*source.split_axes, *source.partial_axes}
    spatial = {axis.name for axis in mesh.spatial}
    free = tuple(axis.name for axis in mesh.spatial if axis.name not in used)
    steps = _Steps(source, mesh, splits)
    for axes in _runs(tuple(axis for axis in source.partial_axes if axis in spatial)):
        yield from steps.reducing(axes)
    for dim, spread in enumerate(source.dims):
        yield from (step for step in steps.moving(dim) if spatial.issuperset(step.axes))
        for count in range(len(spread.axes)):
            if spatial.issuperset(spread.axes[count:]):
                yield from steps.gathering(dim, count)
    for axes in _runs(free):
        partial = {**dict(source.partial), **dict.fromkeys(axes, Reduction.SUM)}
        ordered = tuple((axis, partial[axis]) for axis in mesh.in_order(partial))
        yield Step(CollectiveKind.PARTIAL, axes, source, replace(source, partial=ordered))
        for dim in range(len(source.dims)):
            if (wider := steps.appended(dim, axes)) is not None:
                yield Step(CollectiveKind.SLICE, axes, source, with_dim(source, dim, wider), dim)


def _runs(axes: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield each axis alone, and all axes at once."""
    for axis in axes:
        yield (axis,)
    if len(axes) > 1:
        yield axes


@dataclass(frozen=True)
class _Steps:
    """The single steps from one sharding."""

    source: Sharding
    mesh: Mesh
    splits: Splits | None

    def divided(self, dim: int, axes: tuple[str, ...]) -> DimSharding:
        """Return the sharding of a dim that `axes` divide."""
        return DimSharding(axes) if self.splits is None else self.splits.dim(dim, axes, self.mesh)

    def reducing(self, axes: tuple[str, ...]) -> Iterator[Step]:
        """Yield the steps that reduce over `axes`."""
        source = self.source
        kinds = {kind for axis, kind in source.partial if axis in axes}
        if len(kinds) > 1:
            return
        reduction = kinds.pop()
        left = replace(source, partial=tuple(p for p in source.partial if p[0] not in axes))
        yield Step(CollectiveKind.ALL_REDUCE, axes, source, left, reduction=reduction)
        for dim in range(len(source.dims)):
            if (wider := self.appended(dim, axes)) is not None:
                target = with_dim(left, dim, wider)
                yield Step(CollectiveKind.REDUCE_SCATTER, axes, source, target, dim, reduction=reduction)

    def moving(self, dim: int) -> Iterator[Step]:
        """Yield the step that gives a dim its usual boundaries, if it has others."""
        spread = self.source.dims[dim]
        if spread != (usual := self.divided(dim, spread.axes)):
            yield _moved(self.source, with_dim(self.source, dim, usual), dim, self.mesh)

    def gathering(self, dim: int, count: int) -> Iterator[Step]:
        """Yield the steps that take the minor axes from a dim and leave it split over the first `count`."""
        spread = self.source.dims[dim]
        major_split, lost = DimSharding(spread.axes[:count]), spread.axes[count:]
        if spread.offsets is not None:
            major_split = major(spread, count, spread.offsets[-1], self.mesh)
        gathered = with_dim(self.source, dim, major_split)
        yield Step(CollectiveKind.ALL_GATHER, lost, self.source, gathered, dim)
        for other in range(len(self.source.dims)):
            if other != dim and (wider := self.appended(other, lost)) is not None:
                target = with_dim(gathered, other, wider)
                yield Step(CollectiveKind.ALL_TO_ALL, lost, self.source, target, dim, other)

    def appended(self, dim: int, axes: tuple[str, ...]) -> DimSharding | None:
        """Return a dim split further along `axes`, or None if the order of axes or the boundaries forbid it."""
        spread = self.source.dims[dim]
        wider = (*spread.axes, *axes)
        if wider not in self.mesh.orders(wider):
            return None
        finer = self.divided(dim, wider)
        return finer if _suffix(finer, spread, self.mesh) == axes else None
