"""`cluster="auto"`: the ranks of this job, measured once and cached."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from ...ir.cluster import Cluster
from ...ir.cluster_file import load_cluster
from ...ir.mesh import Mesh
from ...ir.text_file import write_atomically
from ...ir.user_folder import user_folder
from ...runtime.all_ranks import from_rank_0, of_all_ranks
from ...runtime.groups import job_rank, world_size
from ...runtime.plan import PlanError
from ...runtime.profile.devices import device_name
from ...runtime.profile.journal import ProfileError
from ...runtime.profile.result import profile_text
from ...runtime.profile.session import profile_rank
from ...runtime.rank_devices import backend_of
from .local_cluster import generic_cluster, job_profile

AUTO = "auto"
"""The value of `cluster` that stands for the ranks of the job."""

SECONDS = 20.0
"""The approximate duration of the measurement."""

LOG = logging.getLogger("shardwright")


def auto_cluster(device: torch.device, mesh: Mesh | None = None) -> Cluster:
    """
    Return the cluster that this job runs on; every rank must call this.

    The cluster is measured by the first job on these hosts with these devices and stored in the user's cache
    (``~/.cache/shardwright/clusters``, or below ``$XDG_CACHE_HOME``); delete the file to measure again.

    Args:
        mesh: the mesh of the job's ranks; by default hosts by ranks of each host.

    Raises:
        PlanError: the measurement is not sufficient for a cluster.
    """
    if world_size() == 1:
        return generic_cluster(1)
    mesh = mesh or _mesh()
    # The conditions of a measurement: backend, torch version, CPU count, and hosts, devices and threads.
    ranks = of_all_ranks((socket.gethostname(), device_name(device), torch.get_num_threads()))
    path = cluster_path((str(mesh), *backend_of(device), torch.__version__, os.cpu_count(), *ranks))
    stored = from_rank_0(_kept(path) if job_rank() == 0 else None, patient="plan")
    if stored is not None:
        return stored
    if job_rank() == 0:
        LOG.warning(
            "measuring the %d ranks of this job for about %.0f s; the result is stored in %s",
            world_size(),
            SECONDS,
            path,
        )
    request, output = job_profile(mesh, device.type, SECONDS, path.stem)
    try:
        profile = output.profile(profile_rank(request, device))
    except ProfileError as error:
        raise PlanError(f"cluster='auto' cannot measure this job: {error}; give a cluster file") from error
    cluster = from_rank_0(profile.cluster, patient="plan")
    if job_rank() == 0:
        # If the file cannot be written, the next job measures again.
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, profile_text(profile))
        except OSError as error:
            LOG.warning("cannot store %s: %s", path, error)
    return cluster


def mesh_of(given: DeviceMesh) -> Mesh:
    """
    Return the mesh of a DeviceMesh.

    Raises:
        PlanError: the DeviceMesh does not have all ranks of the job in order.
    """
    ranks = given.mesh.flatten().tolist()
    if ranks != list(range(world_size())):
        raise PlanError(
            f"the DeviceMesh has the ranks {ranks}, but a plan uses all {world_size()} ranks of the job in order; "
            "make one of all with torch.distributed.device_mesh.init_device_mesh"
        )
    names = given.mesh_dim_names or tuple(f"a{dim}" for dim in range(given.mesh.ndim))
    return Mesh.of(**dict(zip(names, given.mesh.shape, strict=True)))


def cluster_path(about: tuple[object, ...]) -> Path:
    """Return the path of the stored cluster for a job with these properties."""
    name = hashlib.blake2b(repr(about).encode(), digest_size=6).hexdigest()
    return user_folder() / "clusters" / f"auto-{name}.toml"


def _mesh() -> Mesh:
    """Return a mesh of hosts by ranks of each host if their numbers are equal, otherwise a mesh of one axis."""
    world, local = world_size(), int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
    if world == local or world % local or local == 1:
        return Mesh.of(gpu=world)
    return Mesh.of(node=world // local, gpu=local)


def _kept(path: Path) -> Cluster | None:
    """Return the cluster of an earlier measurement, or None if no file can be read."""
    try:
        return load_cluster(path)
    except (OSError, ValueError):
        return None
