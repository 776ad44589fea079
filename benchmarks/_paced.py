"""Emulate a device that is slower than a core: a rank sleeps after each op in proportion to the time of the op."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_LEAST_SLEEP = 1e-3
"""Shorter sleeps are not precise, and are therefore added up."""

_COLLECTIVES = "c10d"


class Paced(TorchDispatchMode):
    """
    A context in which ops of this thread take `pace` times their processor time.

    A rank then uses one part in `pace` of a core, so that many ranks share a core and do not slow one another.
    Collectives are not paced, and begin after the sleep for the ops before them.
    """

    def __init__(self, pace: float) -> None:
        super().__init__()
        self.pace = pace
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
        self._owed += (self.pace - 1.0) * (time.thread_time() - start)
        if self._owed >= _LEAST_SLEEP:
            self.settle()
        return found

    def settle(self) -> None:
        """Sleep for the accumulated debt. Time by which a sleep is too long counts for the next ops."""
        if self._owed <= 0.0:
            return
        start = time.perf_counter()
        time.sleep(self._owed)
        self._owed -= time.perf_counter() - start
