"""The name and the memory of a rank's device."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """A name for this kind of device, such as `nvidia-h100` or `cpu`."""
    if device.type != "cuda":
        return device.type
    return "-".join(torch.cuda.get_device_name(device).lower().split())


def memory_bytes(device: torch.device) -> int:
    """The bytes of a device; of a host's memory, this rank's share, or what its control group allows it."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(whole, _group_limit()) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _group_limit() -> int:
    """The limit of memory of the control group that this process is in."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int(Path("/sys/fs/cgroup", name).read_text())
        except (OSError, ValueError):
            continue
    return 1 << 62
