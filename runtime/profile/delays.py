"""
How late ranks resume after a wait, by how long they computed before it.

Processes that share cores are not all there when the last of them is: one that was woken waits for a core that another
computes on, and those that have used up their share of it wait longest. What is measured is how much longer small
collectives, gathers and reductions, take a rank in the mean where all compute before them than where none does; what
ranks wait for one another is in it. Devices that nobody shares have none of this.
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
"""Seconds for each, and how many collectives that may be."""

_BYTES = 64 * 1024
_MATRIX = 128


class Delays:
    """
    Measures them; every rank must make one, and call `measure` equally often.
    """

    def __init__(self, comm: Communicator, clock: Clock) -> None:
        self._comm, self._clock = comm, clock
        self._axes = tuple(axis.name for axis in comm.mesh.spatial if axis.size > 1)
        self._value = torch.ones(_BYTES // 4)
        self._x = torch.rand(_MATRIX, _MATRIX)

    def measure(self) -> list[tuple[float, float]]:
        """By stretch, the seconds computed, and by how much a collective took longer: means over ranks."""
        once = self._clock.mean(self._clock.window(self._compute, _WINDOW / 4, 1))
        _, alone = self._alternating(0, _MOST)
        found: list[tuple[float, float]] = []
        for stretch in _STRETCHES:
            count = min(max(2 * round(_WINDOW / stretch / 2), _LEAST), _MOST)
            computed, taken = self._alternating(max(round(stretch / once), 1), count)
            found.append((computed, taken - alone))
        return found

    def _alternating(self, products: int, count: int) -> tuple[float, float]:
        """The mean seconds, over ranks, of so many products and of a collective, done in turn `count` times (even)."""
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
