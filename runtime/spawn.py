"""
Ranks on this machine: one function in several processes with a gloo process group, for tools and tests.

The processes are forked from a server that has loaded torch and the module of the first launched function. So the first
launch imports them only once for all ranks, and later launches import nothing. If any rank ends early, all end, with
one message that names it.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .faults import is_lost_peer
from .lifetime import die_with_parent

Returned = TypeVar("Returned")

# The time after a first failure until the failure of the rank that caused it is known.
_GRACE_SECONDS = 0.5


class RankError(RuntimeError):
    """An error of a rank that raised, died or did not finish; the message names the rank and has its traceback."""


@dataclass(frozen=True)
class _Failure:
    """The failure of a rank; `at` is its time on the clock that all processes share."""

    rank: int
    at: float
    text: str
    lost_peer: bool


def run_ranks(fn: Callable[..., Returned], world_size: int, *args: object, timeout: float = 120.0) -> list[Returned]:
    """
    Run `fn(*args)` on `world_size` local gloo ranks and return the results in rank order.

    Args:
        fn: a function that the processes can import by name; it, `args` and the results are pickled.
        args: arguments, the same on all ranks.
        timeout: seconds until the ranks are ended.

    Raises:
        RankError: a rank raised an exception, was killed or was still running after `timeout`.
    """
    context = multiprocessing.get_context("forkserver")
    # The module of a script is left out, because the server would run the script.
    modules = [fn.__module__] if fn.__module__ != "__main__" else []
    context.set_forkserver_preload(["torch", "torch.distributed", __name__, *modules])
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    with tempfile.TemporaryDirectory(prefix="shardwright-ranks-") as folder, _one_thread_each():
        try:
            for rank in range(world_size):
                receiver, sender = context.Pipe(duplex=False)
                place = (str(Path(folder, "store")), rank, world_size, timeout)
                process = context.Process(target=_rank_main, args=(sender, place, pickle.dumps((fn, args))))
                process.start()
                sender.close()
                processes.append(process)
                pipes.append(receiver)
            return _collect(processes, pipes, timeout)
        finally:
            for process in processes:
                process.kill()
                process.join()


@contextmanager
def _one_thread_each() -> Generator[None, None, None]:
    """Make the libraries of ranks that start inside use one thread, because the ranks share the cores."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _rank_main(sender: Connection, place: tuple[str, int, int, float], call: bytes) -> None:
    store, rank, world_size, timeout = place
    # Not a daemon process: daemons cannot start child processes, and a probe of an op runs in one.
    die_with_parent()
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout)
        )
        fn, args = pickle.loads(call)
        # torch's own pickling of tensors shares memory that ends with this process.
        sender.send_bytes(pickle.dumps(fn(*args)))
        # Keep the sockets open for slower ranks.
        dist.barrier()
    except BaseException as error:
        failure = _Failure(rank, time.monotonic(), traceback.format_exc(), is_lost_peer(error))
        sender.send_bytes(pickle.dumps(failure))
        # Keep the sockets open until the launcher has read the failure, so that peers do not fail first.
        time.sleep(2 * _GRACE_SECONDS)
        os._exit(1)
    dist.destroy_process_group()


def _collect(processes: list[BaseProcess], pipes: list[Connection], timeout: float) -> list[Any]:
    deadline = time.monotonic() + timeout
    results: dict[int, Any] = {}
    failures: dict[int, _Failure] = {}
    waiting = dict(zip(pipes, range(len(pipes)), strict=True))
    while waiting and (remaining := deadline - time.monotonic()) > 0:
        for pipe in wait(list(waiting), timeout=remaining):
            assert isinstance(pipe, Connection)
            rank = waiting.pop(pipe)
            outcome = _outcome(pipe, processes[rank], rank)
            (failures if isinstance(outcome, _Failure) else results)[rank] = outcome
        if failures:
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
    if failures:
        cause = min(failures.values(), key=lambda failure: (failure.lost_peer, failure.at))
        raise RankError(f"rank {cause.rank} of {len(processes)} {cause.text}")
    if waiting:
        late = ", ".join(map(str, sorted(waiting.values())))
        raise RankError(f"rank {late} of {len(processes)} was still running after {timeout:.0f} s")
    return [results[rank] for rank in range(len(processes))]


def _outcome(pipe: Connection, process: BaseProcess, rank: int) -> Any:
    """Return the result that a rank sent, or how it died without a message."""
    try:
        outcome = pickle.loads(pipe.recv_bytes())
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return _Failure(rank, 0.0, f"{how} before it returned", lost_peer=False)
    if isinstance(outcome, _Failure):
        return _Failure(rank, outcome.at, f"failed:\n{outcome.text}", outcome.lost_peer)
    return outcome
