"""A device that is slower than a core: every op is followed by sleep, in proportion to the time that it computed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_LEAST_SLEEP = 1e-3
"""Shorter sleeps are not precise, so that they are added up."""

_COLLECTIVES = "c10d"


class Paced(TorchDispatchMode):
    """
    Ops of this thread take `pace` times the processor time that they need, while this is entered.

    A core that computes for one part in `pace` of the time has room for as many ranks, so that ranks do not slow one
    another. Collectives are not paced, and begin when the ops before them are over.
    """

    def __init__(self, pace: float) -> None:
        super().__init__()
        self.pace = pace
        self._owed = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an op, and sleep if enough is owed."""
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
        """Sleep for what is owed; a sleep that takes longer counts for the next."""
        if self._owed <= 0.0:
            return
        start = time.perf_counter()
        time.sleep(self._owed)
        self._owed -= time.perf_counter() - start
