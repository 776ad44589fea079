"""Emulate a device that is slower than a core: a rank sleeps after each op in proportion to the time of the op."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_LEAST_SLEEP = 1e-3
"""Shorter sleeps are not precise, and are therefore added up."""

_LAUNCH = 30e-6
"""Seconds of an op that are not paced. Small ops take about 5 µs in a loop, and up to 30 µs with cold caches."""

_COLLECTIVES = "c10d"


class Paced(TorchDispatchMode):
    """
    Slow the ops of this thread down to `pace` times their processor time, inside of the context.

    The launch of an op is not paced: an op takes its first microseconds at the speed of the core, as a slow device does
    that a fast host feeds. Otherwise cold caches after a sleep would count `pace` times.

    With `slower` an op, with its launch, takes so many times longer than on a rank of the same pace.

    A rank then uses one part in `pace` of a core, so that many ranks share a core and do not slow one another.
    Collectives are not paced, and begin after the sleep for the ops before them.
    """

    def __init__(self, pace: float, slower: float = 1.0) -> None:
        super().__init__()
        self.pace, self.slower = pace, slower
        self._owed = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an op, and sleep if the accumulated debt is large enough."""
        if func.namespace == _COLLECTIVES:
            self.settle()
            return func(*args, **(kwargs or {}))
        start = time.thread_time()
        found = func(*args, **(kwargs or {}))
        took = time.thread_time() - start
        usual = took + (self.pace - 1.0) * max(took - _LAUNCH, 0.0)
        self._owed += self.slower * usual - took
        if self._owed >= _LEAST_SLEEP:
            self.settle()
        return found

    def settle(self) -> None:
        """Sleep for the accumulated debt. Excess sleep counts for the next ops."""
        if self._owed <= 0.0:
            return
        start = time.perf_counter()
        time.sleep(self._owed)
        self._owed -= time.perf_counter() - start
