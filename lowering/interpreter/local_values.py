"""
Values on all ranks of a mesh, in one process: split a value, assemble it again, and run collectives on it.

A collective uses only the shards of each group, as the ranks of a cluster do; it never sees the global value, so a
wrong collective gives wrong numbers.

The meshes of this module have devices on every axis, including one device for each part of a temporal axis. After such
an axis is unrolled, a value exists for one of its parts, and None stands for all other parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch

from ...ir.collectives import CollectiveKind, Step
from ...ir.mesh import Mesh
from ...ir.sharding import Reduction, Sharding, local_shape, local_slices

Parts = tuple[torch.Tensor | None, ...]
"""The shard of each rank, or None on ranks without the value. Ranks with equal shards share a read-only tensor."""

_COMBINE: dict[Reduction, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Reduction.SUM: torch.add,
    Reduction.MAX: torch.maximum,
    Reduction.MIN: torch.minimum,
}
_INCOMPLETE = "a collective over a temporal axis needs all of its parts; it has some"
_REPLICA_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.complex128: 1e-9, torch.complex64: 1e-4}


@dataclass(frozen=True)
class Spread:
    """A value of global `shape`, spread over the ranks of `mesh` according to `sharding`."""

    shape: tuple[int, ...]
    sharding: Sharding
    parts: Parts
    mesh: Mesh


def split(value: torch.Tensor, sharding: Sharding, mesh: Mesh) -> Spread:
    """
    Spread a global value over the ranks.

    The contributions to a partial value are deterministic but arbitrary: addends of either sign, or values below a
    maximum. An op that wrongly passes partial values through then gives wrong numbers.
    """
    names = [name for name, _ in sharding.partial]
    generator = torch.Generator().manual_seed(0)
    contributions: dict[tuple[int, ...], torch.Tensor] = {(): value}
    for axis, kind in sharding.partial:
        size = mesh.axis(axis).size
        divided = {place: _DIVIDE[kind](part, size, generator) for place, part in contributions.items()}
        contributions = {(*p, i): divided[p][i] for p, i in itertools.product(divided, range(size))}
    parts: dict[object, torch.Tensor] = {}

    def part(rank: int) -> torch.Tensor:
        place = mesh.coordinates(rank)
        slices, chosen = local_slices(value.shape, sharding, mesh, rank), tuple(place[name] for name in names)
        key = (tuple((s.start, s.stop) for s in slices), chosen)
        if key not in parts:
            # Shards are contiguous, as on a real rank, since some torch kernels assume it.
            parts[key] = contributions[chosen][slices].contiguous()
        return parts[key]

    return Spread(tuple(value.shape), sharding, tuple(map(part, range(mesh.device_count))), mesh)


def assemble(spread: Spread, *, check: bool = False) -> torch.Tensor:
    """
    Return the global value.

    Raises:
        ValueError: the shape of a shard contradicts the sharding, or, with `check`, two ranks hold different copies of
            the same elements.
    """
    check_shapes(spread)
    held, mesh = spread.parts, spread.mesh
    parts = tuple(part for part in held if part is not None)
    if len(parts) < len(held):
        raise ValueError("the value is micro-batched, but its consumer needs the full batch")
    for axis, kind in reversed(spread.sharding.partial):
        reduced = _by_group(mesh, (axis,), parts, lambda members, kind=kind: combine(members, kind))
        parts = tuple(part for part in reduced if part is not None)
    if not spread.sharding.split_axes:
        whole = parts[0]
    else:
        whole = parts[0].new_empty(spread.shape)
        # One rank stands for each distinct shard.
        seen: dict[object, tuple[int, tuple[slice, ...]]] = {}
        for rank in range(spread.mesh.device_count):
            slices = local_slices(spread.shape, spread.sharding, spread.mesh, rank)
            seen.setdefault(tuple((s.start, s.stop) for s in slices), (rank, slices))
        for rank, slices in seen.values():
            whole[slices] = parts[rank]
    if check:
        _check_copies(spread, whole, parts)
    return whole


def convert(spread: Spread, target: Sharding, mesh: Mesh) -> Spread:
    """Change the sharding or the mesh through the global value; for reshardings without collectives yet."""
    if (spread.sharding, spread.mesh) == (target, mesh):
        return spread
    return split(assemble(spread), target, mesh)


def masked(spread: Spread, at: Mapping[str, int]) -> Spread:
    """Restrict a value to one part of each axis in `at`."""
    if not at:
        return spread
    here = active(spread.mesh, at)
    return replace(spread, parts=tuple(p if on else None for p, on in zip(spread.parts, here, strict=True)))


def filled(spread: Spread) -> Spread:
    """Fill in zeros for the other parts of a value that exists for one part of an axis which splits it."""
    first = next(part for part in spread.parts if part is not None)
    if spread.sharding.partial:
        raise ValueError(f"one micro-batch of a partial value ({spread.sharding}) cannot be converted by itself")
    shapes = (local_shape(spread.shape, spread.sharding, spread.mesh, rank) for rank in range(spread.mesh.device_count))
    parts = (first.new_zeros(shape) if part is None else part for part, shape in zip(spread.parts, shapes, strict=True))
    return replace(spread, parts=tuple(parts))


def active(mesh: Mesh, at: Mapping[str, int]) -> tuple[bool, ...]:
    """Return, for each rank, whether it has these coordinates on these axes."""
    places = map(mesh.coordinates, range(mesh.device_count))
    return tuple(all(place[axis] == part for axis, part in at.items()) for place in places)


def accumulate(total: Spread, part: Spread, target: Sharding) -> Spread:
    """
    Reduce two values that exist for different parts of a temporal axis, as `spmd.accumulate` does.

    The result exists for all parts of axes that are complete, else for the parts of `part`.
    """
    mesh, completed = part.mesh, tuple(a for a in part.sharding.partial_axes if a not in target.partial_axes)
    axes = completed or tuple(a for a in part.sharding.partial_axes if _apart(total, part, a))
    kinds = dict(part.sharding.partial)
    parts: list[torch.Tensor | None] = list(part.parts)
    for group in mesh.groups(axes):
        members = [spread.parts[rank] for spread in (total, part) for rank in group]
        present = [member for member in members if member is not None]
        if present:
            result = combine(present, kinds[axes[0]])
            for rank in group:
                parts[rank] = result if completed or part.parts[rank] is not None else None
    return Spread(part.shape, target, tuple(parts), mesh)


def _apart(total: Spread, part: Spread, axis: str) -> bool:
    """Return whether two values exist for different parts of `axis`."""

    def coordinates(spread: Spread) -> set[int]:
        return {spread.mesh.coordinates(rank)[axis] for rank, shard in enumerate(spread.parts) if shard is not None}

    return coordinates(total) != coordinates(part)


def check_shapes(spread: Spread) -> None:
    """Raise ValueError if the shape of a shard contradicts the sharding."""
    for rank, part in enumerate(spread.parts):
        expected = local_shape(spread.shape, spread.sharding, spread.mesh, rank)
        if part is not None and tuple(part.shape) != expected:
            raise ValueError(
                f"rank {rank} holds a part of shape {list(part.shape)}, expected {list(expected)} of"
                f" {list(spread.shape)} as {spread.sharding}"
            )


def combine(tensors: Sequence[torch.Tensor], kind: Reduction) -> torch.Tensor:
    """Reduce tensors of one shape."""
    return reduce(_COMBINE[kind], tensors)


def take_step(step: Step, spread: Spread) -> Spread:
    """Run one collective on the shards of the ranks."""
    return replace(spread, sharding=step.target, parts=_STEPS[step.kind](step, spread))


def _all_reduce(step: Step, spread: Spread) -> Parts:
    return _by_group(spread.mesh, step.axes, spread.parts, lambda members: combine(members, step.reduction))


def _all_gather(step: Step, spread: Spread) -> Parts:
    assert step.dim is not None
    dim = step.dim
    return _by_group(spread.mesh, step.axes, spread.parts, lambda members: torch.cat(list(members), dim))


def _slice(step: Step, spread: Spread) -> Parts:
    return tuple(
        part if part is None else _own_part(step, part, spread, rank) for rank, part in enumerate(spread.parts)
    )


def _reduce_scatter(step: Step, spread: Spread) -> Parts:
    """Reduce in ring order, beginning after each device's own part, so that rounding varies as on a cluster."""
    parts = list(spread.parts)
    for group in spread.mesh.groups(step.axes):
        members = [part for rank in group if (part := spread.parts[rank]) is not None]
        if members and len(members) < len(group):
            raise ValueError(_INCOMPLETE)
        for place, rank in enumerate(group if members else ()):
            total = combine((*members[place + 1 :], *members[: place + 1]), step.reduction)
            parts[rank] = _own_part(step, total, spread, rank)
    return tuple(parts)


def _all_to_all(step: Step, spread: Spread) -> Parts:
    assert step.dim is not None
    received: list[torch.Tensor | None] = []
    for rank, own in enumerate(spread.parts):
        members = spread.mesh.group(rank, step.axes)
        sent = ((spread.parts[other], other) for other in members)
        pieces = [_piece(step, part, spread, other, rank) for part, other in sent if part is not None]
        received.append(torch.cat(pieces, step.dim) if own is not None else None)
    return tuple(received)


def _partial(step: Step, spread: Spread) -> Parts:
    firsts = {group[0] for group in spread.mesh.groups(step.axes)}
    return tuple(p if p is None or rank in firsts else torch.zeros_like(p) for rank, p in enumerate(spread.parts))


_STEPS: dict[CollectiveKind, Callable[[Step, Spread], Parts]] = {
    CollectiveKind.ALL_REDUCE: _all_reduce,
    CollectiveKind.REDUCE_SCATTER: _reduce_scatter,
    CollectiveKind.ALL_GATHER: _all_gather,
    CollectiveKind.ALL_TO_ALL: _all_to_all,
    CollectiveKind.SLICE: _slice,
    CollectiveKind.PARTIAL: _partial,
}


def _piece(step: Step, part: torch.Tensor, spread: Spread, sender: int, rank: int) -> torch.Tensor:
    """Return the piece of its shard that `sender` sends to `rank` in an all-to-all."""
    if step.dim != step.to_dim:
        return _own_part(step, part, spread, rank)
    assert step.dim is not None
    held = local_slices(spread.shape, step.source, spread.mesh, sender)[step.dim]
    wanted = local_slices(spread.shape, step.target, spread.mesh, rank)[step.dim]
    start, stop = max(held.start, wanted.start), min(held.stop, wanted.stop)
    return part.narrow(step.dim, min(start, held.stop) - held.start, max(stop - start, 0)).contiguous()


def _own_part(step: Step, part: torch.Tensor, spread: Spread, rank: int) -> torch.Tensor:
    """Return the slice of `part` that `rank` keeps along the dim that gains axes."""
    dim = step.dim if step.to_dim is None else step.to_dim
    assert dim is not None
    before = local_slices(spread.shape, step.source, spread.mesh, rank)[dim]
    after = local_slices(spread.shape, step.target, spread.mesh, rank)[dim]
    return part.narrow(dim, after.start - before.start, after.stop - after.start).contiguous()


def _by_group(
    mesh: Mesh, axes: Sequence[str], parts: Parts, function: Callable[[Sequence[torch.Tensor]], torch.Tensor]
) -> Parts:
    """Give every rank of a group the result of `function` on the group's shards, if they exist."""
    results = list(parts)
    for group in mesh.groups(axes):
        members = [part for rank in group if (part := parts[rank]) is not None]
        if len(members) == len(group):
            result = function(members)
            for rank in group:
                results[rank] = result
        elif members:
            raise ValueError(_INCOMPLETE)
    return tuple(results)


def _check_copies(spread: Spread, whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    seen: set[object] = set()
    for rank, part in enumerate(parts):
        slices = local_slices(spread.shape, spread.sharding, spread.mesh, rank)
        key = (id(part), tuple((s.start, s.stop) for s in slices))
        if key not in seen and not _agree(part, whole[slices]):
            worst = (part.to(torch.complex128) - whole[slices].to(torch.complex128)).abs().max().item()
            raise ValueError(f"the copy on rank {rank} differs from the copies on other ranks by {worst:.3g}")
        seen.add(key)


def _agree(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_floating_point() and not one.is_complex():
        return torch.equal(one, other)
    tolerance = _REPLICA_TOLERANCE.get(one.dtype, 1e-2)
    scale = other[other.isfinite()].abs().max().item() if other.isfinite().any() else 0.0
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _addends(value: torch.Tensor, count: int, generator: torch.Generator) -> list[torch.Tensor]:
    if not value.is_floating_point() and not value.is_complex():
        return [value, *(torch.zeros_like(value) for _ in range(count - 1))]
    finite = torch.where(value.isfinite(), value, 0)
    shares = [torch.randn(value.shape, generator=generator, dtype=value.dtype) for _ in range(count - 1)]
    others = [finite * share for share in shares]
    return [reduce(torch.sub, others, value), *others]


def _with_bounds(sign: int) -> Callable[[torch.Tensor, int, torch.Generator], list[torch.Tensor]]:
    """Return a function that gives each element a random owner; other devices hold less (`sign` -1) or more (1)."""

    def divide(value: torch.Tensor, count: int, generator: torch.Generator) -> list[torch.Tensor]:
        owner = torch.randint(count, value.shape, generator=generator)
        return [torch.where(owner == i, value, value + sign) for i in range(count)]

    return divide


_DIVIDE: dict[Reduction, Callable[[torch.Tensor, int, torch.Generator], list[torch.Tensor]]] = {
    Reduction.SUM: _addends,
    Reduction.MAX: _with_bounds(-1),
    Reduction.MIN: _with_bounds(1),
}
