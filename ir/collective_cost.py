"""
The cost of a collective between two shardings, by method (HAP 2.5.1).

Parts that differ in size are *padded* to the largest, or travel one after the other, each in a broadcast from its
owner (a reduction to its owner, in a reduce-scatter), as they are: *grouped broadcast*. Padding wins where the parts
are nearly equal, broadcasts where they are not. `flat` says that there is nothing to pad. A collective over several
axes may be *hierarchical*: in phases, inside hosts and across, of equal parts or not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from .cluster import Algorithm, Cluster
from .collectives import CollectiveKind, Step
from .mesh import Mesh
from .sharding import DimSharding, Sharding

Method: TypeAlias = Algorithm

DimShare = Callable[[DimSharding], float]

METHODS: Mapping[CollectiveKind, tuple[Method, ...]] = {
    CollectiveKind.ALL_REDUCE: ("flat", "hierarchical"),
    CollectiveKind.ALL_GATHER: ("flat", "padded", "grouped_broadcast", "hierarchical"),
    CollectiveKind.REDUCE_SCATTER: ("flat", "padded", "grouped_broadcast", "hierarchical"),
    CollectiveKind.ALL_TO_ALL: ("flat", "padded", "hierarchical"),
    CollectiveKind.SLICE: (),
    CollectiveKind.PARTIAL: (),
}
"""The methods that there are for each kind of collective; nothing is sent by the last two."""

_CHOSEN = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
"""The kinds that can be carried out in either way."""

_WORTH_WAITING = 1 / 8
"""The part by which the bytes of a bucket may cost more than at best."""


def has_methods(step: Step) -> bool:
    """Whether a step may be carried out in more ways than one: parts of a gather or scatter have offsets."""
    return is_gather_or_scatter(step) and _parted(step).dims[step.dim or 0].offsets is not None


def is_gather_or_scatter(step: Step) -> bool:
    """Whether parts of a dim are joined or made, so that padding is a question where they differ."""
    return step.kind in _CHOSEN


def step_seconds(
    cluster: Cluster, step: Step, method: Method, whole_bytes: float, share: DimShare | None = None
) -> float:
    """
    The time of one collective on a value of `whole_bytes` bytes.

    `share` gives the part of a dim that its largest part is, where that is not what its boundaries say.
    """
    handled = handled_share(step, cluster.mesh, method, share) * whole_bytes
    return cluster.collective_seconds(step.kind, step.axes, handled, method)


def bucket_bytes(cluster: Cluster, kind: CollectiveKind, axes: tuple[str, ...]) -> float:
    """
    How much is worth sending at once: the fewest bytes that take at most an eighth longer, each, than at best.

    Where nothing was measured these take 8 times as long to send as the collective takes to begin.
    """
    return cluster.collective_time(kind, axes).size_within(_WORTH_WAITING)


def methods_of(cluster: Cluster, step: Step) -> tuple[Method, ...]:
    """The ways to carry out a step."""
    found: tuple[Method, ...] = ("flat",)
    if has_methods(step):
        found = ("padded", "grouped_broadcast")
    elif step.kind is CollectiveKind.ALL_TO_ALL and has_offsets(step):
        found = ("padded",)
    return (*found, "hierarchical") if has_hierarchy(cluster, step) else found


def has_hierarchy(cluster: Cluster, step: Step) -> bool:
    """Whether a step may be carried out inside hosts and across in turn, on a cluster that says what is inside."""
    return may_have_phases(step, cluster.mesh) and cluster.has_levels(step.axes)


def may_have_phases(step: Step, mesh: Mesh) -> bool:
    """
    Whether a step may be carried out over its last axis and the others in turn: over several axes of space.

    Where the boundaries of a dim move, a rank knows what it sends and gets, but not what others do, whose pieces would
    pass it.
    """
    spatial = {axis.name for axis in mesh.spatial}
    moves = step.dim is not None and step.dim == step.to_dim
    several = len(step.axes) > 1 and spatial.issuperset(step.axes) and step.axes == mesh.in_order(step.axes)
    return several and not moves and "hierarchical" in METHODS[step.kind]


def cheapest_method(cluster: Cluster, step: Step, whole_bytes: float, methods: Iterable[Method]) -> Method:
    """That of `methods` which takes least for a value of `whole_bytes` bytes; the first of equals."""
    return min(methods, key=lambda method: step_seconds(cluster, step, method, whole_bytes))


def methods_for(cluster: Cluster, step: Step, shape: tuple[int, ...]) -> tuple[Method, ...]:
    """Return the ways to carry out a step of a value of a shape on a cluster."""
    found = methods_in_one_phase(step, shape, cluster.mesh)
    return (*found, "hierarchical") if has_hierarchy(cluster, step) else found


def methods_in_one_phase(step: Step, shape: tuple[int, ...], mesh: Mesh) -> tuple[Method, ...]:
    """Return the ways to carry out a step over all axes at once, by whether its parts have one size."""
    if not _has_unequal_parts(step, shape, mesh):
        return ("flat",)
    return ("padded", "grouped_broadcast") if is_gather_or_scatter(step) else ("padded",)


def _has_unequal_parts(step: Step, shape: tuple[int, ...], mesh: Mesh) -> bool:
    """Return whether the parts of a value of `shape` that a collective joins or makes differ in size."""
    if step.kind is CollectiveKind.ALL_REDUCE:
        return False
    dims = [(size, d) for s in (step.source, step.target) for size, d in zip(shape, s.dims, strict=True)]
    return not all(_equal_parts(size, dim, mesh) for size, dim in dims)


@lru_cache(maxsize=65536)
def _equal_parts(size: int, dim: DimSharding, mesh: Mesh) -> bool:
    boundaries = dim.boundaries(size, mesh)
    return len({b - a for a, b in itertools.pairwise(boundaries)}) <= 1


def has_offsets(step: Step) -> bool:
    """Whether a dim has boundaries of its own before or after a step."""
    return any(dim.offsets is not None for spread in (step.source, step.target) for dim in spread.dims)


def handled_share(step: Step, mesh: Mesh, method: Method = "flat", share: DimShare | None = None) -> float:
    """
    The part of the full (gathered, or not yet scattered) value that the device with the largest share handles.

    Where parts are padded to the largest, that is as many times the largest as there are parts.
    """

    def held(spread: Sharding) -> float:
        return math.prod(share(d) if share else _dim_share(d, mesh) for d in spread.dims if d.axes)

    if step.kind is CollectiveKind.ALL_TO_ALL:
        return max(held(step.source), held(step.target))
    if step.kind not in _CHOSEN:
        return held(step.source)
    if method == "grouped_broadcast":
        return held(step.target if step.kind is CollectiveKind.ALL_GATHER else step.source)
    return mesh.parts(step.axes) * held(_parted(step))


def _parted(step: Step) -> Sharding:
    """The sharding of the parts that a gather joins or a scatter makes."""
    return step.source if step.kind is CollectiveKind.ALL_GATHER else step.target


def _dim_share(dim: DimSharding, mesh: Mesh) -> float:
    """The part of a dim that its largest part is."""
    if dim.offsets is None or not dim.offsets[-1]:
        return 1.0 / mesh.parts(dim.axes)
    return max(b - a for a, b in itertools.pairwise(dim.offsets)) / dim.offsets[-1]
