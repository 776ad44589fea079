"""Processes of one machine: a rank dies with its parent, and is notified at once when another rank there dies."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_START_TIME = 19
"""The index of a process's start time among the fields of `/proc/PID/stat` after the name."""

_STATES = {"T": "stopped by a signal (kill -CONT continues it)", "t": "stopped by a debugger", "Z": "dead"}


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent dies for any reason; only Linux supports this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def ended_ranks() -> set[int]:
    """Return the ranks of this machine that torchrun started and that have ended, as far as known."""
    rank, local, count = (int(os.environ.get(f"{name}", -1)) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    try:
        tasks = Path(f"/proc/{os.getppid()}/task").glob("*/children")
        alive = {_rank(pid) for task in tasks for pid in task.read_text().split()}
        # A rank whose parent is also a rank was started by a shell.
        is_known = rank in alive and _rank(os.getppid()) < 0
    except OSError:
        return set()
    return set(range(rank - local, rank - local + count)) - alive if is_known else set()


def _rank(pid: int | str) -> int:
    """Return the rank that torchrun gave a process; -1 if torchrun did not start it."""
    pairs = (entry.partition("=") for entry in Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0"))
    environment = {name: value for name, _, value in pairs}
    return int(environment.get("RANK", -1)) if "TORCHELASTIC_RUN_ID" in environment else -1


@dataclass(frozen=True)
class Identity:
    """
    A process on a machine; process numbers are compared only on the same machine and PID namespace.

    Args:
        machine: differs between machines, and between containers with their own process numbers.
        pid: number of the process, which started at `start`.
    """

    host: str
    machine: str
    pid: int
    start: str

    @staticmethod
    def mine() -> Identity:
        """Return the identity of this process."""
        return Identity(socket.gethostname(), _machine(), os.getpid(), _start(os.getpid()))

    def opened(self) -> int | None:
        """Return a file descriptor that becomes readable when the process dies, or None for an invisible process."""
        if not self.machine or self.machine != _machine() or not hasattr(os, "pidfd_open"):
            return None
        try:
            opened = os.pidfd_open(self.pid)
        except OSError:
            return None
        if _start(self.pid) == self.start:
            return opened
        os.close(opened)
        return None

    def state(self) -> str:
        """Return an unusual state of a local process, such as ``stopped by a signal``; otherwise empty."""
        fields = _stat(self.pid)
        return _STATES.get(fields[0], "") if fields and self.machine == _machine() else ""

    def death(self) -> str:
        """Return the name of the signal that killed a local process; empty if unknown."""
        fields = _stat(self.pid)
        status = int(fields[-1]) & 0x7F if fields and fields[0] == "Z" and self.machine == _machine() else 0
        return signal.Signals(status).name if status in set(signal.Signals) else ""


def _machine() -> str:
    """Return an id of this machine's boot and PID namespace; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name, which may contain spaces; empty for a missing process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _start(pid: int) -> str:
    fields = _stat(pid)
    return fields[_START_TIME] if fields else ""
