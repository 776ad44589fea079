"""Clusters of processes on this machine: the generic one at any size, or what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ir.cluster import Cluster, Device, Link
from ..ir.cluster_file import find_cluster
from ..ir.collectives import CollectiveKind
from ..ir.mesh import Mesh
from ..runtime.calibrate import measure
from .compile import on_mesh

AXIS = "gpu"
GENERIC = "local-4"

_LEAST_BETA = 1e-12
"""Seconds per byte where no byte was seen to cost anything, as among ranks of one."""


def generic_cluster(ranks: int) -> Cluster:
    """A machine of `ranks` processes that nobody has measured."""
    return on_mesh(find_cluster(GENERIC), Mesh.of(**{AXIS: ranks}), name=f"local-{ranks}")


def measured_cluster(ranks: int, seconds: float) -> Cluster:
    """This machine with `ranks` processes, measured for about `seconds`; RankError if one of them fails."""
    return cluster_of(measure(ranks, seconds))


def cluster_of(measured: Mapping[str, Any]) -> Cluster:
    """The cluster that a result of `runtime.calibrate.measure` describes."""
    ranks = measured["world_size"]
    device = Device(
        kind="cpu",
        flops=tuple(measured["flops"].items()),
        memory_bandwidth=measured["memory_bandwidth"],
        memory=measured["memory"],
        launch=measured["launch"],
    )
    kinds = {kind.value for kind in CollectiveKind}
    fits = {kind: (fit["alpha"], fit["beta"]) for kind, fit in measured["collectives"].items() if kind in kinds}
    alpha, beta = fits[CollectiveKind.ALL_GATHER.value]
    exceptions = tuple((kind, *fit) for kind, fit in sorted(fits.items()))
    link = Link(AXIS, alpha, max(beta, _LEAST_BETA), exceptions)
    return Cluster(f"local-{ranks}", Mesh.of(**{AXIS: ranks}), (device,), (0,) * ranks, (link,))
