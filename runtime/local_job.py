"""A job of a program on this machine: as under torchrun, but nothing listens on any interface but loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from types import FrameType
from typing import NoReturn

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

_POLL_SECONDS = 0.02
_END_SECONDS = 3.0
"""How long ranks may take to end by themselves, and once more after they were asked to."""

_LOOPBACK = "127.0.0.1"


def run_local_job(ranks: int, program: str, arguments: Sequence[str]) -> tuple[int, int] | None:
    """
    Run a Python program on ranks of this machine, till all have ended.

    Returns:
        Of the rank that failed first its number and exit code, which is negative for a signal; None if none did.

    Raises:
        KeyboardInterrupt: this process was interrupted, or got SIGTERM; the ranks have ended.
    """
    listening = socket.create_server((_LOOPBACK, 0), backlog=max(ranks, 128))
    port = listening.getsockname()[1]
    timeout = timedelta(minutes=5)
    # As long as it lasts the ranks find one another by it.
    store = TCPStore(
        _LOOPBACK, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    before = signal.signal(signal.SIGTERM, _interrupted)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            # In a group of their own: what is typed at the terminal ends them by way of this process.
            started = subprocess.Popen(
                [sys.executable, "-u", program, *arguments],
                env=os.environ | places(rank, ranks, store.port),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            processes.append(started)
        return _first_failure(processes)
    finally:
        _end(processes)
        signal.signal(signal.SIGTERM, before)


def places(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The environment that torchrun gives a rank of one machine; the store listens on `port`, in no rank."""
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


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _first_failure(processes: Sequence[subprocess.Popen[bytes]]) -> tuple[int, int] | None:
    """The first that fails; others have some time to say why."""
    failed: tuple[int, int] | None = None
    deadline = float("inf")
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if failed is None and (ended := [(rank, code) for rank, code in enumerate(codes) if code]):
            # One that was killed is the cause of others' ends.
            failed = min(ended, key=lambda each: each[1])
            deadline = time.monotonic() + _END_SECONDS
        if None not in codes:
            break
        time.sleep(_POLL_SECONDS)
    return failed


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs; what does not heed that is killed."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _END_SECONDS
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
