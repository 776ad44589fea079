"""Faults of ranks: mismatched programs, refused calls, and ranks that raise, die or hang."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from shardwright.ir.mesh import Mesh
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.requests import SequenceError


def mismatched(how: str) -> str:
    """Let all ranks but rank 0 make another second call than rank 0; return the message of the check."""
    comm = Communicator(Mesh.of(dp=2, tp=2), [("dp",), ("tp",)], checked=True)
    comm.all_reduce(torch.ones(3), ("dp",))
    first = dist.get_rank() == 0
    others: dict[str, Callable[[], torch.Tensor]] = {
        "shape": lambda: comm.all_reduce(torch.ones(2, 3), ("dp",)),
        "dtype": lambda: comm.all_reduce(torch.ones(6, dtype=torch.int32), ("dp",)),
        "order": lambda: comm.all_gather(torch.ones(6), 0, ("dp",)),
        "axes": lambda: comm.all_reduce(torch.ones(6), ("tp",)),
    }
    try:
        _ = comm.all_reduce(torch.ones(6), ("dp",)) if first else others[how]()
    except SequenceError as error:
        return str(error)
    return "nothing"


def refused() -> list[str]:
    """Return the errors of invalid calls."""
    comm = Communicator(Mesh.of(dp=2), [("dp",)])
    x, dp = torch.ones(2), ("dp",)
    calls: list[Callable[[], object]] = [
        lambda: comm.all_reduce(x, ("tp",)),
        lambda: comm.start("slice", (x,), dp),
        lambda: comm.start("all_reduce", (x,), dp, dim=0),
        lambda: comm.all_gather(x, 0, dp, method="ring"),
        lambda: comm.all_gather(x, 0, dp, sizes=(3, 1)),
        lambda: comm.start("all_reduce", (x, x.double()), dp),
        lambda: comm.all_to_all(x, 0, 0, dp),
    ]
    messages: list[str] = []
    for call in calls:
        try:
            call()
        except ValueError as error:
            messages.append(str(error))
    return messages


def raises_on(rank: int, by: str = "") -> None:
    """Let one rank raise ZeroDivisionError, or be killed, while the others wait for it in a collective."""
    if dist.get_rank() == rank:
        if by:
            os.kill(os.getpid(), signal.Signals[by])
        _ = 1 / 0
    dist.all_reduce(torch.ones(1))


def waits_for_a_hung_rank() -> str:
    """Let part 1 of a group of two never call the all-gather; return the error of the other rank."""
    comm = Communicator(Mesh.of(dp=2, tp=2), [("tp",)], timeout=timedelta(seconds=2))
    if comm.part(("tp",)) == 1:
        time.sleep(5)
        return "slept"
    try:
        comm.all_gather(torch.ones(3), 0, ("tp",))
    except RuntimeError as error:
        return str(error)
    return "nothing"


def sleeps_on(rank: int) -> None:
    """Let one rank hang."""
    if dist.get_rank() == rank:
        time.sleep(1000)
