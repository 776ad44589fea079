"""
The cost of a collective between two shardings, by method (HAP 2.5.1).

Parts of different sizes are either *padded* to the largest, or sent one after the other, each in a broadcast from its
owner (in a reduce-scatter, a reduction to its owner): *grouped broadcast*. Padding is faster if the parts are nearly
equal, broadcasts if they are not. `flat` means that no padding is needed. A collective over several axes may be
*hierarchical*: in phases, inside hosts and across, with parts of any sizes.
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
"""The methods of each kind of collective; the last two kinds send nothing."""

_CHOSEN = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
"""The kinds that padding and grouped broadcasts can both implement."""

_WORTH_WAITING = 1 / 8
"""Upper limit of a bucket's excess over the least seconds per byte, as a fraction."""


def has_methods(step: Step) -> bool:
    """Whether a step has several methods: it is a gather or scatter of parts with offsets."""
    return is_gather_or_scatter(step) and _parted(step).dims[step.dim or 0].offsets is not None


def is_gather_or_scatter(step: Step) -> bool:
    """Whether a step joins or makes parts of a dim, so that parts of different sizes need padding or broadcasts."""
    return step.kind in _CHOSEN


def step_seconds(
    cluster: Cluster, step: Step, method: Method, whole_bytes: float, share: DimShare | None = None
) -> float:
    """
    Return the seconds of one collective on a value of `whole_bytes` bytes.

    `share` gives the share of a dim that its largest part has, if this does not follow from the dim's boundaries.
    """
    handled = handled_share(step, cluster.mesh, method, share) * whole_bytes
    return cluster.collective_seconds(step.kind, step.axes, handled, method)


def bucket_bytes(cluster: Cluster, kind: CollectiveKind, axes: tuple[str, ...]) -> float:
    """
    Return the fewest bytes whose seconds per byte are at most an eighth above the least.

    Without measured times, sending these bytes takes 8 times as long as starting the collective.
    """
    return cluster.collective_time(kind, axes).size_within(_WORTH_WAITING)


def methods_of(cluster: Cluster, step: Step) -> tuple[Method, ...]:
    """Return the methods of a step, by whether its parts have offsets."""
    methods: tuple[Method, ...] = ("flat",)
    if has_methods(step):
        methods = ("padded", "grouped_broadcast")
    elif step.kind is CollectiveKind.ALL_TO_ALL and has_offsets(step):
        methods = ("padded",)
    return (*methods, "hierarchical") if has_hierarchy(cluster, step) else methods


def has_hierarchy(cluster: Cluster, step: Step) -> bool:
    """Whether a step may run in turn inside hosts and across, on a cluster whose axes inside hosts are known."""
    return may_have_phases(step, cluster.mesh) and cluster.has_levels(step.axes)


def may_have_phases(step: Step, mesh: Mesh) -> bool:
    """
    Whether a step may run over its last axis and its other axes in turn: it is over several spatial axes.

    If the boundaries of a dim move, the step may not: a rank does not know the pieces of other ranks that it would
    have to forward.
    """
    spatial = {axis.name for axis in mesh.spatial}
    moves = step.dim is not None and step.dim == step.to_dim
    several = len(step.axes) > 1 and spatial.issuperset(step.axes) and step.axes == mesh.in_order(step.axes)
    return several and not moves and "hierarchical" in METHODS[step.kind]


def cheapest_method(cluster: Cluster, step: Step, whole_bytes: float, methods: Iterable[Method]) -> Method:
    """Return the method that takes least time for a value of `whole_bytes` bytes; on ties the first one."""
    return min(methods, key=lambda method: step_seconds(cluster, step, method, whole_bytes))


def methods_for(cluster: Cluster, step: Step, shape: tuple[int, ...]) -> tuple[Method, ...]:
    """Return the methods for a step on a value of `shape` on a cluster."""
    methods = methods_in_one_phase(step, shape, cluster.mesh)
    return (*methods, "hierarchical") if has_hierarchy(cluster, step) else methods


def methods_in_one_phase(step: Step, shape: tuple[int, ...], mesh: Mesh) -> tuple[Method, ...]:
    """Return the methods for a step over all axes at once, by whether its parts have one size."""
    if not _has_unequal_parts(step, shape, mesh):
        return ("flat",)
    return ("padded", "grouped_broadcast") if is_gather_or_scatter(step) else ("padded",)


def _has_unequal_parts(step: Step, shape: tuple[int, ...], mesh: Mesh) -> bool:
    """Whether the parts of a value of `shape` that a collective joins or makes differ in size."""
    if step.kind is CollectiveKind.ALL_REDUCE:
        return False
    dims = [(size, d) for s in (step.source, step.target) for size, d in zip(shape, s.dims, strict=True)]
    return not all(_equal_parts(size, dim, mesh) for size, dim in dims)


@lru_cache(maxsize=65536)
def _equal_parts(size: int, dim: DimSharding, mesh: Mesh) -> bool:
    return len({b - a for a, b in itertools.pairwise(dim.boundaries(size, mesh))}) <= 1


def has_offsets(step: Step) -> bool:
    """Whether a dim has offsets before or after a step."""
    return any(dim.offsets is not None for spread in (step.source, step.target) for dim in spread.dims)


def handled_share(step: Step, mesh: Mesh, method: Method = "flat", share: DimShare | None = None) -> float:
    """
    Return the share of the full (gathered, or not yet scattered) value that the device with the largest share handles.

    With padding, it is the share of the largest part times the number of parts.
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
    """Return the sharding of the parts that a gather joins or a scatter makes."""
    return step.source if step.kind is CollectiveKind.ALL_GATHER else step.target


def _dim_share(dim: DimSharding, mesh: Mesh) -> float:
    """Return the share of a dim that its largest part has."""
    if dim.offsets is None or not dim.offsets[-1]:
        return 1.0 / mesh.parts(dim.axes)
    return max(b - a for a, b in itertools.pairwise(dim.offsets)) / dim.offsets[-1]
