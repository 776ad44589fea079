"""The device of each rank of a job, and the backend of a process group for the tensors of a device."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

CPU = torch.device("cpu")


@dataclass(frozen=True)
class VisibleGPUs:
    """
    The GPUs that a rank may use.

    Args:
        local_rank: number of the rank among the ranks of its host.
        uuids: UUIDs of the GPUs, in the order of their indices in the rank's process.
    """

    host: str
    local_rank: int
    uuids: tuple[str, ...]

    @staticmethod
    def here() -> VisibleGPUs:
        """Return the GPUs of this process."""
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        uuids = tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(count))
        return VisibleGPUs(socket.gethostname(), int(os.environ.get("LOCAL_RANK", "0")), uuids)


def assign_gpus(visible: Sequence[VisibleGPUs]) -> list[int] | str:
    """
    Assign each rank a separate GPU: by its local rank, or otherwise the first free one. A process may see all GPUs
    of its host, or a single GPU as index 0.

    Returns:
        The indices; or the reason why the job must run on CPUs, which is empty if no rank sees a GPU.
    """
    taken: set[str] = set()
    indices: list[int] = []
    for own in visible:
        free = [index for index, uuid in enumerate(own.uuids) if uuid not in taken]
        if not free:
            if not any(other.uuids for other in visible):
                return ""
            ranks = sum(other.host == own.host for other in visible)
            gpus = len({uuid for other in visible if other.host == own.host for uuid in other.uuids})
            return (
                f"host {own.host} has {ranks} ranks and {gpus} visible GPUs, so that all ranks compute on CPUs; start"
                " as many processes on each host as it has GPUs"
            )
        index = own.local_rank if own.local_rank in free else free[0]
        taken.add(own.uuids[index])
        indices.append(index)
    return indices


def agree_on_device(name: str, store: Store, rank: int, world: int) -> torch.device:
    """
    Choose the device of this rank and make it current: a separate GPU if every rank of the job has one, or the CPU.

    Args:
        name: name of the program, for a warning of rank 0 if only some ranks could have a GPU.
    """
    keys = [f"gpus/{other}" for other in range(world)]
    store.set(keys[rank], json.dumps(asdict(VisibleGPUs.here())))
    everyone = [json.loads(text) for text in store.multi_get(keys)]
    assigned = assign_gpus([VisibleGPUs(**{**fields, "uuids": tuple(fields["uuids"])}) for fields in everyone])
    if isinstance(assigned, str):
        if assigned and rank == 0:
            logging.getLogger("shardwright").warning("%s: %s", name, assigned)
        return CPU
    device = torch.device("cuda", assigned[rank])
    torch.cuda.set_device(device)
    return device


def single_device() -> torch.device:
    """Return the device of a single rank that was started without a launcher."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else CPU


def device_of_group() -> torch.device:
    """
    Choose the device of this rank in a process group that the script created, and make it current: the device that
    the group is bound to (`init_process_group(device_id=...)`), or the current GPU if the group has NCCL, or the CPU.

    If the script has not chosen a GPU, so that all ranks have index 0, `LOCAL_RANK` is the index.
    """
    if (bound := getattr(dist.group.WORLD, "bound_device_id", None)) is not None:
        return bound
    if not torch.cuda.is_available() or backends().get("cuda") != "nccl":
        return CPU
    index, local_rank = torch.cuda.current_device(), int(os.environ.get("LOCAL_RANK", "0"))
    if index == 0 and local_rank < torch.cuda.device_count():
        index = local_rank
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def backends(group: dist.ProcessGroup | None = None) -> Mapping[str, str]:
    """Return the backend of a process group by device type (`cpu`, `cuda`); the default is the group of all ranks."""
    pairs = (entry.partition(":") for entry in dist.get_backend_config(group).split(","))
    return {kind: name for kind, _, name in pairs if name}


def backend_of(device: torch.device, group: dist.ProcessGroup | None = None) -> str:
    """
    Return the backend that carries tensors of a device.

    Raises:
        ValueError: the group's backend for the device is missing, or differs from gloo and NCCL.
    """
    backend_by_type = backends(group)
    if backend_by_type.get(device.type) in ("gloo", "nccl"):
        return backend_by_type[device.type]
    listed = ", ".join(f"{kind} {name}" for kind, name in backend_by_type.items())
    raise ValueError(
        f"the process group has no gloo or NCCL for tensors on {device.type} (found {listed}); make it by"
        f' init_process_group("{usual_backend(device)}")'
    )


def usual_backend(device: torch.device) -> str:
    """Return the backend that a job uses for devices of this type."""
    return "nccl" if device.type == "cuda" else "gloo"
