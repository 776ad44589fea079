"""The name and the memory of a rank's device, and the load that other processes put on its host."""

from __future__ import annotations

import os
import resource
import socket
import time
from pathlib import Path

import torch

from .clock import Clock


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


_GRAIN_SECONDS = 0.02
"""The error of the system's counters, in seconds."""


class HostLoadMonitor:
    """
    Watches the processors of all hosts of a job; every rank must construct one and call `share` at the same points.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._host = clock, socket.gethostname()
        self._marks = _marks()

    def share(self) -> float:
        """Return the number of processors that other processes kept busy since the last call, on the busiest host."""
        now = _marks()
        wall, busy, own = (after - before for after, before in zip(now, self._marks, strict=True))
        self._marks = now
        hosts: dict[str, tuple[float, float]] = {}
        for host, busy, own in self._clock.everyone((self._host, busy, own)):
            most, ours = hosts.get(host, (0.0, 0.0))
            hosts[host] = max(most, busy), ours + own
        return self._clock.slowest(max(max(busy - ours - _GRAIN_SECONDS, 0.0) for busy, ours in hosts.values()) / wall)


def _marks() -> tuple[float, float, float]:
    """Return the time, the seconds of work of all processors of this host, and the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), _busy_seconds(), used.ru_utime + used.ru_stime


def _busy_seconds() -> float:
    """Return the seconds that all processors of this host have worked so far; 0 if the system does not tell."""
    try:
        counters = Path("/proc/stat").read_text(encoding="utf-8").split("\n", maxsplit=1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, *rest = map(int, counters)
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
