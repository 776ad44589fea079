"""Clusters of processes on this machine: the generic one at any size, or what was measured."""

from __future__ import annotations

from ...ir.cluster import Cluster
from ...ir.cluster_file import find_cluster
from ...ir.mesh import Mesh
from ...ir.submesh import on_mesh
from ...runtime.profile.output import Output
from ...runtime.profile.session import QUICK_SECONDS, ProfileRequest, profile_here
from ...runtime.spawn import run_ranks
from .op_families import family_samples

AXIS = "gpu"
GENERIC = "local-4"


def generic_cluster(ranks: int) -> Cluster:
    """A machine of `ranks` processes that nobody has measured."""
    return on_mesh(find_cluster(GENERIC), Mesh.of(**{AXIS: ranks}), name=f"local-{ranks}")


def measured_cluster(ranks: int, seconds: float) -> Cluster:
    """This machine with `ranks` processes, measured for about `seconds`; RankError if one of them fails."""
    samples = family_samples(("float32",), quick=seconds < QUICK_SECONDS)
    request = ProfileRequest(Mesh.of(**{AXIS: ranks}), samples, seconds)
    journal, *_ = run_ranks(profile_here, ranks, request, timeout=120 + 10 * seconds)
    return Output(f"local-{ranks}", samples).profile(journal).cluster
