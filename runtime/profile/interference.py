"""
How many times longer computation and communication take if they run at the same time (HiDup 6.6).

On a GPU both compete for memory and multiprocessors; on a CPU they compete for the cores.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from ..communicator import Communicator, Token, UntilEvent
from .clock import Clock

_MOST_ELEMENTS, _LEAST_ELEMENTS = 1024 * 1024, 16 * 1024
_LONGEST = 0.05
"""Upper bound on the seconds of the communication, unless the least number of elements takes longer."""

_MATRIX = 192
_ALONE = 8
"""How often each is measured alone, alternating with the other."""


class InterferenceMeter:
    """
    Measures interference; every rank must construct one and call `measure` equally often.

    The computation consists of products of small matrices; the communication is an all-reduce over all ranks, of 4 MiB
    if links are fast enough.
    """

    def __init__(self, comm: Communicator, clock: Clock) -> None:
        self._comm, self._clock = comm, clock
        self._axes = tuple(axis.name for axis in comm.mesh.spatial if axis.size > 1)
        self._value = torch.ones(_MOST_ELEMENTS, device=comm.device)
        self._x = torch.rand(_MATRIX, _MATRIX, device=comm.device)
        # The first call also connects the ranks.
        self._communicate()
        once = clock.slowest(clock.calls(self._communicate, 1))
        self._value = self._value[: max(int(_MOST_ELEMENTS * min(_LONGEST / once, 1.0)), _LEAST_ELEMENTS)].clone()

    def measure(self) -> tuple[float, float]:
        """Return how many times longer (compute, communication) took, the mean over ranks."""
        alone = self._clock.window(self._compute, self._communication_alone(), 1)
        sending = self._communication_alone()
        self._clock.wait_for_all()
        start, count, token = time.perf_counter(), 0, self._begin()
        while not _is_over(token):
            self._compute()
            count += 1
        spent = time.perf_counter() - start
        self._comm.wait(token)
        ratios = (max(spent / max(count, 1) / alone, 1.0), max(spent / sending, 1.0))
        compute, communication = map(self._clock.mean, ratios)
        return compute, communication

    def _communication_alone(self) -> float:
        """Return the mean seconds of an all-reduce on the slowest rank."""
        self._clock.wait_for_all()
        return self._clock.slowest(self._clock.calls(self._communicate, _ALONE))

    def _communicate(self) -> None:
        self._comm.wait(self._begin())

    def _begin(self) -> Token:
        return self._comm.start("all_reduce", (self._value,), self._axes, donate=True)

    def _compute(self) -> None:
        torch.mm(self._x, self._x)
        if self._comm.device.type == "cuda":
            # The products must run in sequence, because their number is counted.
            torch.cuda.current_stream(self._comm.device).synchronize()


def _is_over(token: Token) -> bool:
    """Whether a collective is complete, without waiting for it."""
    return all(work.is_completed() for work in token.pending.works if isinstance(work, dist.Work | UntilEvent))
