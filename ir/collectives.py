"""
Collectives as steps between shardings: what each does to a sharding, and which lead from one to another.

kind            from -> to                      meaning
all_reduce      partial over axes -> whole      every device gets the reduction
reduce_scatter  partial over axes -> dim split  every device gets its part of the reduction
all_gather      dim split -> dim whole          every device gets the parts of all
all_to_all      dim a split -> dim b split      the split moves from one dim to another
slice           dim whole -> dim split          each keeps its part (no communication)
partial         whole -> partial                the first part keeps the value, the others hold zeros
                (likewise)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from .mesh import Mesh
from .sharding import DimSharding, Reduction, Sharding, with_dim


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
        """Whether no bytes are sent."""
        return self in (CollectiveKind.SLICE, CollectiveKind.PARTIAL)


@dataclass(frozen=True)
class Step:
    """
    One collective: over `axes`, from `source` to `target`; `dim` loses (gather) or gains (scatter, slice) the
    axes, `to_dim` gains them in an all-to-all."""

    kind: CollectiveKind
    axes: tuple[str, ...]
    source: Sharding
    target: Sharding
    dim: int | None = None
    to_dim: int | None = None
    reduction: Reduction = Reduction.SUM


def find_step(kind: CollectiveKind, source: Sharding, target: Sharding, mesh: Mesh) -> Step | None:
    """The step of `kind` that leads from `source` to `target`, or None where there is none."""
    return next((s for s in _candidates(source, target, mesh) if s.kind is kind), None)


def single_step(source: Sharding, target: Sharding, mesh: Mesh) -> Step | None:
    """The one collective that leads from `source` to `target`, or None where it takes several."""
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
            lost, gained = _suffix(source.dims[a], target.dims[a]), _suffix(target.dims[b], source.dims[b])
            if lost and lost == gained:
                yield Step(CollectiveKind.ALL_TO_ALL, lost, source, target, a, b)


def _one_dim(
    source: Sharding, target: Sharding, mesh: Mesh, dim: int, axes: tuple[str, ...], reduction: Reduction
) -> Iterator[Step]:
    before, after = source.dims[dim], target.dims[dim]
    gained, lost = _suffix(after, before), _suffix(before, after)
    if axes and gained and set(gained) == set(axes):
        yield Step(CollectiveKind.REDUCE_SCATTER, gained, source, target, dim, reduction=reduction)
    elif not axes and gained:
        yield Step(CollectiveKind.SLICE, gained, source, target, dim)
    elif not axes and lost:
        yield Step(CollectiveKind.ALL_GATHER, lost, source, target, dim)


def _suffix(longer: DimSharding, shorter: DimSharding) -> tuple[str, ...]:
    """The minor axes that `longer` splits beyond `shorter`; none where it is no refinement of it."""
    count = len(shorter.axes)
    if longer.axes[:count] != shorter.axes or len(longer.axes) == count:
        return ()
    # Uneven boundaries refine one another only if the coarser split is that of whole groups of the finer;
    # with no coarser split there is nothing to compare.
    if count and (longer.offsets is not None or shorter.offsets is not None):
        return ()
    return longer.axes[count:]


def steps_from(source: Sharding, mesh: Mesh) -> Iterator[Step]:
    """
    Every single step over spatial axes that leads from `source` to another even sharding.

    What is split or partial over a temporal axis stays so.
    """
    used = {*source.split_axes, *source.partial_axes}
    spatial = {axis.name for axis in mesh.spatial}
    free = tuple(axis.name for axis in mesh.spatial if axis.name not in used)
    for axes in _runs(tuple(axis for axis in source.partial_axes if axis in spatial)):
        yield from _reducing(source, axes, mesh)
    for dim, spread in enumerate(source.dims):
        for count in range(len(spread.axes)):
            if spatial.issuperset(spread.axes[count:]):
                yield from _gathering(source, dim, spread.axes[:count], spread.axes[count:], mesh)
    for axes in _runs(free):
        partial = {**dict(source.partial), **dict.fromkeys(axes, Reduction.SUM)}
        ordered = tuple((axis, partial[axis]) for axis in mesh.in_order(partial))
        yield Step(CollectiveKind.PARTIAL, axes, source, replace(source, partial=ordered))
        for dim, spread in enumerate(source.dims):
            if spread.offsets is None and (wider := _appended(spread, axes, mesh)) is not None:
                yield Step(CollectiveKind.SLICE, axes, source, with_dim(source, dim, wider), dim)


def _runs(axes: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Each axis alone, and all of them at once."""
    for axis in axes:
        yield (axis,)
    if len(axes) > 1:
        yield axes


def _reducing(source: Sharding, axes: tuple[str, ...], mesh: Mesh) -> Iterator[Step]:
    kinds = {kind for axis, kind in source.partial if axis in axes}
    if len(kinds) > 1:
        return
    reduction = kinds.pop()
    left = replace(source, partial=tuple(p for p in source.partial if p[0] not in axes))
    yield Step(CollectiveKind.ALL_REDUCE, axes, source, left, reduction=reduction)
    for dim, spread in enumerate(source.dims):
        if spread.offsets is None and (wider := _appended(spread, axes, mesh)) is not None:
            target = with_dim(left, dim, wider)
            yield Step(CollectiveKind.REDUCE_SCATTER, axes, source, target, dim, reduction=reduction)


def _gathering(
    source: Sharding, dim: int, kept: tuple[str, ...], lost: tuple[str, ...], mesh: Mesh
) -> Iterator[Step]:
    if kept and source.dims[dim].offsets is not None:
        return
    gathered = with_dim(source, dim, DimSharding(kept))
    yield Step(CollectiveKind.ALL_GATHER, lost, source, gathered, dim)
    for other, spread in enumerate(source.dims):
        if other != dim and spread.offsets is None and (wider := _appended(spread, lost, mesh)) is not None:
            yield Step(CollectiveKind.ALL_TO_ALL, lost, source, with_dim(gathered, other, wider), dim, other)


def _appended(spread: DimSharding, axes: tuple[str, ...], mesh: Mesh) -> DimSharding | None:
    """`spread` split further along `axes`, where that keeps the mesh's order of axes."""
    wider = (*spread.axes, *axes)
    return DimSharding(wider) if wider == mesh.in_order(wider) else None
