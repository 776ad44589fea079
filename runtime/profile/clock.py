"""
Timing on all ranks at once.

A rank's time is that of many calls between two readings of its clock, after a barrier: their mean. Where processes
share cores, single calls say nothing: a call either has the core or has not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..faults import ACTIVITY
from ..groups import UNWATCHED
from ..rank_devices import backends

Given = TypeVar("Given")


def _wait(done: Callable[[], object]) -> None:
    """Wait for the other ranks, so that the watch of a job reports one that does not come."""
    ACTIVITY.wait("the measurement of the ranks", done)


class Clock:
    """
    The clocks of all ranks of a job; every rank must make one, and call its methods in the same order.

    Args:
        device: where the work is; before a clock is read, all that was queued there is waited for.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        # What ranks agree on is in the memory of hosts, which NCCL does not carry.
        own = None if backends().get("cpu") == "gloo" else dist.new_group(backend="gloo", timeout=UNWATCHED)
        self._group = own if isinstance(own, dist.ProcessGroup) else dist.group.WORLD

    def by_rank(self, value: float) -> list[float]:
        """The `value` of every rank, the same list on all of them."""
        given = torch.tensor([value], dtype=torch.float64)
        values = [torch.empty_like(given) for _ in range(self.world)]
        _wait(lambda: dist.all_gather(values, given, self._group))
        return [each.item() for each in values]

    def slowest(self, value: float) -> float:
        """The largest `value` of any rank."""
        return max(self.by_rank(value))

    def mean(self, value: float) -> float:
        """The mean `value` of the ranks."""
        return statistics.fmean(self.by_rank(value))

    def share(self, value: Given) -> Given:
        """The `value` of rank 0, on all ranks; it is pickled."""
        box = [value]
        _wait(lambda: dist.broadcast_object_list(box, 0, self._group))
        return box[0]

    def everyone(self, value: Given) -> list[Given]:
        """What each rank gives, by rank; it is pickled."""
        boxes: list[Any] = [None] * self.world
        _wait(lambda: dist.all_gather_object(boxes, value, self._group))
        return boxes

    def wait_for_all(self) -> None:
        """A barrier, with nothing left to do on the device."""
        self._settle()
        _wait(lambda: dist.barrier(self._group))

    def calls(self, run: Callable[[], object], count: int) -> float:
        """This rank's seconds per call, of `count` calls."""
        start = time.perf_counter()
        for _ in range(count):
            run()
        self._settle()
        return (time.perf_counter() - start) / count

    def window(self, run: Callable[[], object], seconds: float, chunk: int) -> float:
        """
        This rank's seconds per call, of as many calls as fill `seconds`, `chunk` of them between looks at the clock.

        So all ranks work to the end: none has a core for itself because another is done.
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
