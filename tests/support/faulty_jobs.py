"""
Jobs with faults: ranks are started as torchrun does, but forked from a process that has imported all modules.

A job is a function of a module that tests can import; `run_job` returns its exit codes and error output.
"""

from __future__ import annotations

import logging
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
"""The exit code of a rank that had not ended by the deadline."""


@dataclass(frozen=True)
class Ended:
    """
    How a job ended.

    Args:
        codes: exit codes by rank, negative for signals.
        errors: standard error of all ranks.
        seconds: time from the start of the ranks to the end of the job.
    """

    codes: tuple[int, ...]
    errors: str
    seconds: float


def run_job(job: Callable[[int], Any], world: int = 2, *, by_torchrun: bool = True) -> Ended:
    """
    Run `job(rank)` on ranks with the environment of torchrun; kill ranks that do not end.

    Args:
        by_torchrun: whether the store of the job is outside its ranks, as with torchrun; else rank 0 holds it.
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
    """Wait for the ranks; as torchrun does, end the others soon after the first one fails."""
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
    # Only faults are of interest, not the phases of planning.
    logging.getLogger("shardwright").setLevel(logging.WARNING)
    # Temporary files go into a folder of this job, which is deleted with it.
    folder, agent = str(Path(errors).parent), {"TORCHELASTIC_USE_AGENT_STORE": str(by_torchrun)}
    os.environ |= {**places(rank, world, port), **agent, "TMPDIR": folder}
    # As in a script, errors go to `sys.excepthook`, and registered exit functions run at the end.
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
    """Run a function in a separate process, as the probe of ops without a rule does."""
    return run_apart(lambda: 3, 10.0)
