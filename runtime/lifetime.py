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
"""Of the fields of `/proc/PID/stat` after the name, that of the time at which the process was started."""

_STATES = {"T": "stopped by a signal (kill -CONT continues it)", "t": "stopped by a debugger", "Z": "dead"}


def die_with_parent() -> None:
    """Have this process killed when the one that started it dies, whatever kills that; does nothing but on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def ended_ranks() -> set[int]:
    """Return the ranks of this machine that torchrun has started and that have ended, as far as that is known."""
    rank, local, count = (int(os.environ.get(f"{name}", -1)) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    try:
        tasks = Path(f"/proc/{os.getppid()}/task").glob("*/children")
        alive = {_rank(pid) for task in tasks for pid in task.read_text().split()}
        # A rank whose parent is one too has been started by a shell.
        is_known = rank in alive and _rank(os.getppid()) < 0
    except OSError:
        return set()
    return set(range(rank - local, rank - local + count)) - alive if is_known else set()


def _rank(pid: int | str) -> int:
    """The rank that torchrun has made of a process; -1 where it has not."""
    pairs = (each.partition("=") for each in Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0"))
    found = {name: value for name, _, value in pairs}
    return int(found.get("RANK", -1)) if "TORCHELASTIC_RUN_ID" in found else -1


@dataclass(frozen=True)
class Identity:
    """
    Which process on which machine: numbers of processes are compared only where they mean the same.

    Args:
        host: its name, for messages.
        machine: differs between machines, and between containers that number processes by themselves.
        pid: of the process, which was started at `start`.
    """

    host: str
    machine: str
    pid: int
    start: str

    @staticmethod
    def mine() -> Identity:
        """Of this process."""
        return Identity(socket.gethostname(), _machine(), os.getpid(), _start(os.getpid()))

    def opened(self) -> int | None:
        """A file descriptor that can be read once the process is dead; None where it cannot be seen from here."""
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
        """What is unusual of a process of this machine, as ``stopped by a signal``; empty for nothing."""
        fields = _stat(self.pid)
        return _STATES.get(fields[0], "") if fields and self.machine == _machine() else ""

    def death(self) -> str:
        """The name of the signal that killed a process of this machine; empty where that is not known any more."""
        fields = _stat(self.pid)
        status = int(fields[-1]) & 0x7F if fields and fields[0] == "Z" and self.machine == _machine() else 0
        return signal.Signals(status).name if status in set(signal.Signals) else ""


def _machine() -> str:
    """Empty where there is no telling."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """The fields of a process after its name, which may have spaces; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _start(pid: int) -> str:
    fields = _stat(pid)
    return fields[_START_TIME] if fields else ""
