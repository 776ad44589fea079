"""Clusters of processes on this machine: a generic cluster of any size, or a measured one."""

from __future__ import annotations

from ...ir.cluster import Cluster
from ...ir.cluster_file import find_cluster
from ...ir.mesh import Mesh
from ...ir.submesh import on_mesh
from ...runtime.profile.session import profile_here
from ...runtime.spawn import run_ranks
from .job_profile import GENERIC, job_profile

AXIS = "gpu"


def generic_cluster(ranks: int) -> Cluster:
    """Return a cluster of `ranks` processes on one machine, with assumed and not measured numbers."""
    return on_mesh(find_cluster(GENERIC), Mesh.of(**{AXIS: ranks}), name=f"local-{ranks}")


def measured_cluster(ranks: int, seconds: float) -> Cluster:
    """Return this machine with `ranks` processes, measured for about `seconds`; RankError if a process fails."""
    request, output = job_profile(Mesh.of(**{AXIS: ranks}), "cpu", seconds, f"local-{ranks}")
    journal, *_ = run_ranks(profile_here, ranks, request, timeout=120 + 10 * seconds)
    return output.profile(journal).cluster
