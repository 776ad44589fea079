"""A job of a program on this machine, as under torchrun, except that it listens only on the loopback interface."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta

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
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    processes: list[subprocess.Popen[bytes]] = []
    ending = signal.SIGTERM
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
        return _first_failure(processes)
    except KeyboardInterrupt:
        # A rank that alone receives SIGTERM reports it as a fault of the job.
        ending = signal.SIGINT
        raise
    finally:
        _end(processes, ending)
        signal.signal(signal.SIGTERM, before)


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


def _first_failure(processes: Sequence[subprocess.Popen[bytes]]) -> tuple[int, int] | None:
    """Return rank and exit code of the first failure, after giving other ranks some time to explain theirs."""
    failed: tuple[int, int] | None = None
    deadline = float("inf")
    while time.monotonic() < deadline:
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
