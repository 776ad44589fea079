"""
What a collective between two shardings costs, by the way in which it is carried out (HAP 2.5.1).

Parts that differ in size are *padded* to the largest, or travel one after the other, each in a broadcast from its
owner (a reduction to its owner, in a reduce-scatter), as they are: *grouped broadcast*. Padding wins where the parts
are nearly equal, broadcasts where they are not. `flat` says that there is nothing to pad.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

from .cluster import Cluster
from .collectives import CollectiveKind, Step
from .mesh import Mesh
from .sharding import DimSharding, Sharding

Method = Literal["flat", "padded", "grouped_broadcast"]

_CHOSEN = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
"""The kinds that can be carried out in either way."""


def has_methods(step: Step) -> bool:
    """Whether a step may be carried out in more ways than one: parts of a gather or scatter have offsets."""
    return step.kind in _CHOSEN and _parted(step).dims[step.dim or 0].offsets is not None


def step_costs(cluster: Cluster, step: Step, method: Method) -> tuple[float, float]:
    """(seconds, seconds per byte of the whole value) of one collective."""
    share = handled_share(step, cluster.mesh, method)
    if method == "grouped_broadcast":
        alpha, beta = cluster.broadcast_costs(step.axes)
        return alpha * cluster.mesh.parts(step.axes), beta * share
    alpha, beta = cluster.collective_costs(step.kind, step.axes)
    return alpha, beta * share


def cheapest_method(cluster: Cluster, step: Step, whole_bytes: float) -> Method:
    """`padded` or `grouped_broadcast`, for a step of a value of `whole_bytes` bytes that `has_methods`."""

    def seconds(method: Method) -> float:
        fixed, per_byte = step_costs(cluster, step, method)
        return fixed + per_byte * whole_bytes

    return "grouped_broadcast" if seconds("grouped_broadcast") < seconds("padded") else "padded"


def handled_share(step: Step, mesh: Mesh, method: Method = "flat") -> float:
    """
    The part of the whole value that the device with the most of it handles: gathered, or not yet scattered.

    Where parts are padded to the largest, that is as many times the largest as there are parts.
    """
    if step.kind is CollectiveKind.ALL_TO_ALL:
        return max(_share(step.source, mesh), _share(step.target, mesh))
    if step.kind not in _CHOSEN:
        return _share(step.source, mesh)
    if method == "grouped_broadcast":
        return _share(step.target if step.kind is CollectiveKind.ALL_GATHER else step.source, mesh)
    return mesh.parts(step.axes) * _share(_parted(step), mesh)


def _parted(step: Step) -> Sharding:
    """The sharding of the parts that a gather joins or a scatter makes."""
    return step.source if step.kind is CollectiveKind.ALL_GATHER else step.target


def _share(spread: Sharding, mesh: Mesh) -> float:
    return math.prod(_dim_share(dim, mesh) for dim in spread.dims if dim.axes)


def _dim_share(dim: DimSharding, mesh: Mesh) -> float:
    """The part of a dim that its largest part is."""
    if dim.offsets is None or not dim.offsets[-1]:
        return 1.0 / mesh.parts(dim.axes)
    return max(b - a for a, b in itertools.pairwise(dim.offsets)) / dim.offsets[-1]
