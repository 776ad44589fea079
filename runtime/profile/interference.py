"""
How much computation and communication of the ranks delay each other.

`InterferenceMeter` measures how many times longer both take if they run at the same time (HiDup 6.6): on a GPU they
compete for memory and multiprocessors, on a CPU for the cores. `Delays` measures how late ranks resume after a wait.
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
        while not all(work.is_completed() for work in token.pending.works if isinstance(work, dist.Work | UntilEvent)):
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


_STRETCHES = (0.0005, 0.002, 0.008, 0.032)
"""Seconds of computing before a collective."""

_WINDOW = 0.2
_LEAST, _MOST = 6, 60
"""Seconds per measurement, and bounds on its number of collectives."""

_SMALL_BYTES = 64 * 1024
_SMALL_MATRIX = 128


class Delays:
    """
    Measures how late ranks resume after a wait; every rank must construct one, and call `measure` equally often.

    When a wait completes, processes that share cores resume at different times: a woken process may wait for a core
    that another uses, longest if it has used up its share. The measurement is the mean extra time of small collectives
    (gathers and reductions) if all ranks compute before them, compared with ranks that do not compute; it includes the
    time that ranks wait for one another. Unshared devices have no delay.
    """

    def __init__(self, comm: Communicator, clock: Clock) -> None:
        self._comm, self._clock = comm, clock
        self._axes = tuple(axis.name for axis in comm.mesh.spatial if axis.size > 1)
        self._value = torch.ones(_SMALL_BYTES // 4)
        self._x = torch.rand(_SMALL_MATRIX, _SMALL_MATRIX)

    def measure(self) -> list[tuple[float, float]]:
        """Return, for each stretch, mean seconds of computation and mean extra seconds of a collective over ranks."""
        once = self._clock.mean(self._clock.window(self._compute, _WINDOW / 4, 1))
        _, alone = self._alternating(0, _MOST)
        delays: list[tuple[float, float]] = []
        for stretch in _STRETCHES:
            count = min(max(2 * round(_WINDOW / stretch / 2), _LEAST), _MOST)
            computed, taken = self._alternating(max(round(stretch / once), 1), count)
            delays.append((computed, taken - alone))
        return delays

    def _alternating(self, products: int, count: int) -> tuple[float, float]:
        """Alternate `products` products and a collective, `count` times (even); return mean seconds of both."""
        self._clock.wait_for_all()
        computing, communicating, now = 0.0, 0.0, time.perf_counter()
        for turn in range(count):
            for _ in range(products):
                self._compute()
            begun, done = now, time.perf_counter()
            if turn % 2:
                self._comm.all_gather(self._value, 0, self._axes)
            else:
                self._comm.all_reduce(self._value, self._axes)
            now = time.perf_counter()
            computing += done - begun
            communicating += now - done
        return self._clock.mean(computing / count), self._clock.mean(communicating / count)

    def _compute(self) -> None:
        torch.mm(self._x, self._x)
