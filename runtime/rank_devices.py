"""Which device each rank of a job computes on, and which backend of a process group carries its tensors."""

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
        host: on which it runs, for messages.
        local_rank: its number among the ranks of its host.
        uuids: of the GPUs, in the order of their indices in its process.
    """

    host: str
    local_rank: int
    uuids: tuple[str, ...]

    @staticmethod
    def here() -> VisibleGPUs:
        """Those of this process."""
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        uuids = tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(count))
        return VisibleGPUs(socket.gethostname(), int(os.environ.get("LOCAL_RANK", "0")), uuids)


def assign_gpus(visible: Sequence[VisibleGPUs]) -> list[int] | str:
    """
    By rank, the index of a GPU that it has for itself: that of its local rank, or the first that is left. A process may
    see all GPUs of its host, or one of its own as index 0.

    Returns:
        The indices; or why the job has to run on CPUs, which is empty where no rank has a GPU.
    """
    taken: set[str] = set()
    found: list[int] = []
    for each in visible:
        free = [index for index, uuid in enumerate(each.uuids) if uuid not in taken]
        if not free:
            if not any(one.uuids for one in visible):
                return ""
            ranks = sum(one.host == each.host for one in visible)
            gpus = len({uuid for one in visible if one.host == each.host for uuid in one.uuids})
            return (
                f"host {each.host} has {ranks} ranks and {gpus} visible GPUs, so that all ranks compute on CPUs; start"
                " as many processes on each host as it has GPUs"
            )
        index = each.local_rank if each.local_rank in free else free[0]
        taken.add(each.uuids[index])
        found.append(index)
    return found


def agree_on_device(name: str, store: Store, rank: int, world: int) -> torch.device:
    """
    The device of this rank, made the current one: a GPU of its own if every rank of the job has one, otherwise the CPU.

    Args:
        name: of the program; rank 0 logs a warning with it where only some ranks could have a GPU.
        store: of the job.
    """
    keys = [f"gpus/{each}" for each in range(world)]
    store.set(keys[rank], json.dumps(asdict(VisibleGPUs.here())))
    everyone = [json.loads(each) for each in store.multi_get(keys)]
    assigned = assign_gpus([VisibleGPUs(**{**each, "uuids": tuple(each["uuids"])}) for each in everyone])
    if isinstance(assigned, str):
        if assigned and rank == 0:
            logging.getLogger("shardwright").warning("%s: %s", name, assigned)
        return CPU
    device = torch.device("cuda", assigned[rank])
    torch.cuda.set_device(device)
    return device


def single_device() -> torch.device:
    """The device of a job of one rank that nobody launched."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else CPU


def device_of_group() -> torch.device:
    """
    The device of this rank, made the current one, in a process group that the script made: the one that the group is
    bound to (`init_process_group(device_id=...)`), else the current GPU where the group has NCCL, else the CPU.

    Where the script has not chosen a GPU, and all ranks have index 0, it is the one of `LOCAL_RANK`.
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
    """By type of device (`cpu`, `cuda`) the backend of a process group, by default of the one of all ranks."""
    pairs = (each.partition(":") for each in dist.get_backend_config(group).split(","))
    return {kind: name for kind, _, name in pairs if name}


def backend_of(device: torch.device, group: dist.ProcessGroup | None = None) -> str:
    """
    The backend that carries tensors of a device.

    Raises:
        ValueError: the group has none for them, or one that is neither gloo nor NCCL.
    """
    known = backends(group)
    if known.get(device.type) in ("gloo", "nccl"):
        return known[device.type]
    listed = ", ".join(f"{kind} {name}" for kind, name in known.items())
    raise ValueError(
        f"the process group has no gloo or NCCL for tensors on {device.type} (found {listed}); make it by"
        f' init_process_group("{usual_backend(device)}")'
    )


def usual_backend(device: torch.device) -> str:
    """The backend that a job of ours has for devices of this type."""
    return "nccl" if device.type == "cuda" else "gloo"
