"""
Jobs in which something goes wrong: ranks as torchrun starts them, but forked from a process that has all imported.

A job is a function of a module that tests can import; what its ranks print and how they end comes back.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from shardwright.lowering.probe.apart import run_apart
from shardwright.runtime.local_job import places

MOST_SECONDS = 60.0
LEFT_OVER = 999
"""The exit code of a rank that had not ended by then."""


@dataclass(frozen=True)
class Ended:
    """
    How a job ended.

    Args:
        codes: exit codes by rank, negative for signals.
        errors: what all ranks wrote to standard error.
        seconds: from the start of the ranks.
    """

    codes: tuple[int, ...]
    errors: str
    seconds: float


def run_job(job: Callable[[int], Any], world: int = 2, *, by_torchrun: bool = True) -> Ended:
    """
    Run `job(rank)` on ranks that see what torchrun gives them; ranks that are left over are killed.

    Args:
        by_torchrun: whether the store of the job is outside of its ranks, as torchrun's is; else it is in rank 0.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shardwright.api.parallelize", "shardwright.runtime.launch", __name__])
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    store = _store(port, listening) if by_torchrun else listening.close()
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder, "errors")
        errors.touch()
        places = [(rank, world, port, by_torchrun, str(errors)) for rank in range(world)]
        processes = [context.Process(target=_rank, args=(job, *place), daemon=True) for place in places]
        start = time.monotonic()
        for process in processes:
            process.start()
        _join(processes, start + MOST_SECONDS)
        seconds = time.monotonic() - start
        codes = tuple(process.exitcode if process.exitcode is not None else LEFT_OVER for process in processes)
        for process in processes:
            process.kill()
            process.join()
        del store
        return Ended(codes, errors.read_text(), seconds)


def _store(port: int, listening: socket.socket) -> TCPStore:
    return TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        master_listen_fd=listening.detach(),
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
    )


def _join(processes: Sequence[BaseProcess], deadline: float) -> None:
    """Wait for the ranks; as torchrun does, end the others soon after the first that fails."""
    failed = 0.0
    while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
        if not failed and any(process.exitcode for process in processes):
            failed = time.monotonic()
            time.sleep(0.1)
            for process in processes:
                if process.is_alive():
                    process.terminate()


def _rank(job: Callable[[int], Any], rank: int, world: int, port: int, by_torchrun: bool, errors: str) -> None:
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    torch.set_num_threads(1)
    # The folder for what is not to last is of this job alone, and goes with it.
    folder, agent = str(Path(errors).parent), {"TORCHELASTIC_USE_AGENT_STORE": str(by_torchrun)}
    os.environ |= {**places(rank, world, port), **agent, "TMPDIR": folder}
    # As a script is: an error goes to the hook, and what is registered runs at its end.
    code = 0
    try:
        job(rank)
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException as error:
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    multiprocessing.util._exit_function()  # pyright: ignore[reportAttributeAccessIssue]
    sys.stdout.flush()
    os._exit(code)


def asked_apart() -> int:
    """What is asked of an op without a rule is asked in a process of its own."""
    return run_apart(lambda: 3, 10.0)
