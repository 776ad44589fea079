"""Clusters of the ranks of a job: generic, or measured (the network, ops of every family, the ops of a step)."""

from __future__ import annotations

from ...ir.cluster import Cluster
from ...ir.cluster_file import find_cluster
from ...ir.mesh import Mesh
from ...ir.submesh import on_mesh
from ...models.gpt2 import GPT2Config, gpt2_step
from ...runtime.profile.rehearsal import Rehearsal
from ...runtime.profile.result import Output
from ...runtime.profile.samples import OpSample
from ...runtime.profile.session import QUICK_SECONDS, ProfileRequest, profile_here
from ...runtime.spawn import run_ranks
from ..compile import PlanOptions, compile_step
from .op_families import dtypes_of, family_samples
from .op_samples import rehearsal_of, samples_of_plan

GENERIC = "local-4"
"""The shipped cluster of processes on one machine, with assumed and not measured numbers."""

_LAYERS = GPT2Config(layers=2, width=256, heads=4, vocabulary=256, positions=128)
_ROWS, _LENGTH = 4, 128
"""The rows and the sequence length of the reference batch on each rank."""


def job_profile(
    mesh: Mesh, device: str, seconds: float, name: str, *, resume: bool = False
) -> tuple[ProfileRequest, Output]:
    """
    Return the request to measure all ranks of a mesh, and the output that turns measurements into a cluster.

    Args:
        device: the type of the ranks' devices, `cpu` or `cuda`.
        seconds: approximate duration of the measurement.
    """
    samples = family_samples(dtypes_of(device), quick=seconds < QUICK_SECONDS)
    in_step, rehearsals = _reference(mesh) if device == "cpu" else ((), ())
    request = ProfileRequest(mesh, samples, seconds, resume=resume, rehearsals=rehearsals)
    return request, Output(name, samples, in_step=in_step)


def _reference(mesh: Mesh) -> tuple[tuple[OpSample, ...], tuple[Rehearsal, ...]]:
    """Return the ops of a small transformer's data-parallel step, and its plan for timing them in context."""
    cluster = on_mesh(find_cluster(GENERIC), mesh)
    step = gpt2_step(_LAYERS, batch=_ROWS * mesh.device_count, length=_LENGTH)
    module = compile_step(step, cluster, PlanOptions("fixed", "dp"), name="reference").module
    return samples_of_plan(module), (rehearsal_of(module, "reference"),)


AXIS = "gpu"


def generic_cluster(ranks: int) -> Cluster:
    """Return a cluster of `ranks` processes on one machine, with assumed and not measured numbers."""
    return on_mesh(find_cluster(GENERIC), Mesh.of(**{AXIS: ranks}), name=f"local-{ranks}")


def measured_cluster(ranks: int, seconds: float) -> Cluster:
    """Return this machine with `ranks` processes, measured for about `seconds`; RankError if a process fails."""
    request, output = job_profile(Mesh.of(**{AXIS: ranks}), "cpu", seconds, f"local-{ranks}")
    journal, *_ = run_ranks(profile_here, ranks, request, timeout=120 + 10 * seconds)
    return output.profile(journal).cluster
