"""How much of the hosts other processes take while something is measured."""

from __future__ import annotations

import os
import resource
import socket
import time
from pathlib import Path

from .clock import Clock

_GRAIN_SECONDS = 0.02
"""What the system's counters may be wrong by."""


class HostLoadMonitor:
    """
    Watches the processors of all hosts of a job; every rank must make one and call `share` at the same points.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._host = clock, socket.gethostname()
        self._marks = _marks()

    def share(self) -> float:
        """The processors that others than ranks kept busy since the last call, of the host where most."""
        now = _marks()
        wall, busy, own = (after - before for after, before in zip(now, self._marks, strict=True))
        self._marks = now
        hosts: dict[str, tuple[float, float]] = {}
        for host, busy, own in self._clock.everyone((self._host, busy, own)):
            most, ours = hosts.get(host, (0.0, 0.0))
            hosts[host] = max(most, busy), ours + own
        return self._clock.slowest(max(max(busy - ours - _GRAIN_SECONDS, 0.0) for busy, ours in hosts.values()) / wall)


def _marks() -> tuple[float, float, float]:
    """The time, what all processors of this host have worked, and what the threads of this process have, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), _busy_seconds(), used.ru_utime + used.ru_stime


def _busy_seconds() -> float:
    """What all processors of this host have worked so far; 0 where the system does not say."""
    try:
        counters = Path("/proc/stat").read_text(encoding="utf-8").split("\n", maxsplit=1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, *rest = map(int, counters)
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
