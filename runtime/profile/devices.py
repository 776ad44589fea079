"""The name and the memory of a rank's device."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """Return a name for this kind of device, such as `nvidia-h100` or `cpu`."""
    if device.type != "cuda":
        return device.type
    return "-".join(torch.cuda.get_device_name(device).lower().split())


def memory_bytes(device: torch.device) -> int:
    """Return the bytes of a GPU's memory; for a CPU, this rank's share of the host's memory or its cgroup limit."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(whole, _group_limit()) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _group_limit() -> int:
    """Return the memory limit of this process's control group."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int(Path("/sys/fs/cgroup", name).read_text())
        except (OSError, ValueError):
            continue
    return 1 << 62
