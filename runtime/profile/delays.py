"""
How late ranks resume after a wait, depending on how long they computed before it.

When a wait completes, processes that share cores resume at different times: a woken process may wait for a core that
another uses, longest if it has used up its share. The measurement is the mean extra time of small collectives
(gathers and reductions) if all ranks compute before them, compared with ranks that do not compute; it includes the time
that ranks wait for one another. Unshared devices have no delay.
"""

from __future__ import annotations

import time

import torch

from ..communicator import Communicator
from .clock import Clock

_STRETCHES = (0.0005, 0.002, 0.008, 0.032)
"""Seconds of computing before a collective."""

_WINDOW = 0.2
_LEAST, _MOST = 6, 60
"""Seconds per measurement, and bounds on its number of collectives."""

_BYTES = 64 * 1024
_MATRIX = 128


class Delays:
    """
    Measures the delays of ranks; every rank must construct one, and call `measure` equally often.
    """

    def __init__(self, comm: Communicator, clock: Clock) -> None:
        self._comm, self._clock = comm, clock
        self._axes = tuple(axis.name for axis in comm.mesh.spatial if axis.size > 1)
        self._value = torch.ones(_BYTES // 4)
        self._x = torch.rand(_MATRIX, _MATRIX)

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
