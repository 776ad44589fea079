"""A job of a program on this machine, as under torchrun, except that it listens only on the loopback interface."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

_POLL_SECONDS = 0.02
_END_SECONDS = 3.0
"""Seconds that ranks may take to end by themselves, and again after a signal."""

_LOOPBACK = "127.0.0.1"


def run_local_job(ranks: int, program: str, arguments: Sequence[str]) -> tuple[int, int] | None:
    """
    Run a Python program on ranks of this machine until all have ended.

    Returns:
        Number and exit code (negative for a signal) of the first rank that failed, or None if all succeeded.

    Raises:
        KeyboardInterrupt: this process was interrupted, or received SIGTERM; the ranks have ended.
    """
    listening = socket.create_server((_LOOPBACK, 0), backlog=max(ranks, 128))
    port = listening.getsockname()[1]
    timeout = timedelta(minutes=5)
    # The ranks find one another through the store while it exists.
    store = TCPStore(
        _LOOPBACK, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    with _noted_interrupts() as interrupts:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                # Each rank has a separate session: keyboard signals reach it only through this process.
                process = subprocess.Popen(
                    [sys.executable, "-u", program, *arguments],
                    env=os.environ | places(rank, ranks, store.port),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
                processes.append(process)
            failure = _first_failure(processes, interrupts)
        finally:
            # A rank that alone receives SIGTERM reports it as a fault of the job.
            _end(processes, signal.SIGINT if interrupts else signal.SIGTERM)
        if interrupts:
            raise KeyboardInterrupt
        return failure


@contextmanager
def _noted_interrupts() -> Generator[list[int]]:
    """
    Append SIGINT and SIGTERM to a list in the place of ending this process.

    An exception at any instruction could leave the lock of a `Popen` held, and the process could never be waited for.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    # A process that ignores SIGINT, as background jobs of shells do, still ignores it.
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def places(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the environment that torchrun gives a rank on one machine; the store is outside the ranks."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": _LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": f"shardwright-{os.getpid()}",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _first_failure(processes: Sequence[subprocess.Popen[bytes]], interrupts: Sequence[int]) -> tuple[int, int] | None:
    """
    Return rank and exit code of the first failure, after giving other ranks some time to explain theirs.

    It returns early when `interrupts` is no longer empty.
    """
    failed: tuple[int, int] | None = None
    deadline = float("inf")
    while not interrupts and time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if failed is None and (ended := [(rank, code) for rank, code in enumerate(codes) if code]):
            # A rank that was killed (negative code) is the cause of the other failures.
            failed = min(ended, key=lambda failure: failure[1])
            deadline = time.monotonic() + _END_SECONDS
        if None not in codes:
            break
        time.sleep(_POLL_SECONDS)
    return failed


def _end(processes: Sequence[subprocess.Popen[bytes]], by: signal.Signals) -> None:
    """End the processes that still run by a signal, and kill any process that ignores it."""
    for process in processes:
        process.send_signal(by)
    deadline = time.monotonic() + _END_SECONDS
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
