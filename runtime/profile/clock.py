"""
Timing on all ranks at once.

A rank's time is the mean of many calls between two readings of its clock, after a barrier. If processes share cores,
the time of a single call is meaningless: the call either has the core or waits for it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from ..all_ranks import Given, from_rank_0, host_group, of_all_ranks
from ..faults import ACTIVITY

_MEASUREMENT = "the measurement of the ranks"
"""The name of the waits: the watch of a job reports by it that a rank does not come."""


class Clock:
    """
    Synchronized timing on all ranks of a job; every rank must construct one, and call its methods in the same order.

    Args:
        device: device of the measured work; each reading first waits for all work queued on it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._group = host_group()

    def by_rank(self, value: float) -> list[float]:
        """Return the `value` of every rank, the same list on all ranks."""
        mine = torch.tensor([value], dtype=torch.float64)
        values = [torch.empty_like(mine) for _ in range(self.world)]
        ACTIVITY.wait(_MEASUREMENT, lambda: dist.all_gather(values, mine, self._group))
        return [tensor.item() for tensor in values]

    def slowest(self, value: float) -> float:
        """Return the largest `value` of any rank."""
        return max(self.by_rank(value))

    def mean(self, value: float) -> float:
        """Return the mean `value` of the ranks."""
        return statistics.fmean(self.by_rank(value))

    def share(self, value: Given) -> Given:
        """Return the `value` of rank 0 on all ranks; it is pickled."""
        return from_rank_0(value, what=_MEASUREMENT)

    def everyone(self, value: Given) -> list[Given]:
        """Return the values of all ranks, in rank order; they are pickled."""
        return of_all_ranks(value, _MEASUREMENT)

    def wait_for_all(self) -> None:
        """Wait for all work on the device, then for all ranks."""
        self._settle()
        ACTIVITY.wait(_MEASUREMENT, lambda: dist.barrier(self._group))

    def calls(self, run: Callable[[], object], count: int) -> float:
        """Return this rank's mean seconds of `count` calls."""
        start = time.perf_counter()
        for _ in range(count):
            run()
        self._settle()
        return (time.perf_counter() - start) / count

    def window(self, run: Callable[[], object], seconds: float, chunk: int) -> float:
        """
        Return this rank's mean seconds of a call, over `seconds`, with a clock reading after every `chunk` calls.

        All ranks work for the same time, so that no rank gets a core to itself when another rank finishes early.
        """
        start, count, now = time.perf_counter(), 0, 0.0
        while now < seconds:
            for _ in range(chunk):
                run()
            self._settle()
            count += chunk
            now = time.perf_counter() - start
        return now / count

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
