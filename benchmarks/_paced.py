"""Emulate a device that is slower than a core: an op takes as long as a simple model of the device says."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

FLOPS = 2e9
"""FLOP/s of products and attention on the emulated device."""

BANDWIDTH = 1.2e9
"""Bytes per second of all ops on the emulated device."""

LAUNCH = 2.5e-4
"""Fixed seconds of an op. A core launches an op faster, even with cold caches after a sleep, so the sum holds."""

_LEAST_SLEEP = 1e-3
"""Shortest sleep in seconds. Shorter sleeps are not precise, so they are added up first."""

_COLLECTIVES = "c10d"

_HOST_ONLY = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::_unsafe_view",
}
"""Ops besides views that a device does not take part in: they only allocate memory or make a view."""


class Paced(TorchDispatchMode):
    """
    Slow down the ops of this thread to the speed of an emulated device.

    An op takes `slower * (LAUNCH + max(flops / FLOPS, bytes / BANDWIDTH))` seconds. A core needs a small part of that
    time, and the rank sleeps for the rest. Thus many ranks share a core and do not slow one another, and noise of the
    core is not multiplied. Collectives begin after the sleep for the ops before them.

    The time that the core needs for Python, views and allocations between ops counts as time of the ops, since a
    program of the emulated device has it within `LAUNCH`.
    """

    def __init__(self, slower: float = 1.0) -> None:
        super().__init__()
        self.slower = slower
        self._owed = 0.0
        self._paid = 0.0
        """The processor seconds of this thread that count as paid."""

    def __enter__(self) -> Self:
        """Begin to slow down the ops, with nothing owed."""
        self._owed, self._paid = 0.0, time.thread_time()
        super().__enter__()
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an op, and sleep if the accumulated debt is large enough."""
        kwargs = kwargs or {}
        if func.namespace == _COLLECTIVES:
            self.settle()
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if not func.is_view and func.name().partition(".")[0] not in _HOST_ONLY:
            self._owed += self.slower * device_seconds(func, args, kwargs, result)
        if self._owed >= _LEAST_SLEEP:
            self.settle()
        return result

    def settle(self) -> None:
        """Sleep for the accumulated debt. Excess sleep counts for the next ops."""
        paid = time.thread_time()
        self._owed -= paid - self._paid
        self._paid = paid
        if self._owed <= 0.0:
            return
        start = time.perf_counter()
        time.sleep(self._owed)
        self._owed -= time.perf_counter() - start


def device_seconds(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any) -> float:
    """Return the seconds of an op on the emulated device."""
    count = flop_registry.get(func.overloadpacket)
    flops = count(*args, **kwargs, out_val=found) if count is not None else 0
    moved = sum(each.numel() * each.element_size() for each in _tensors((args, tuple(kwargs.values()), found)))
    return LAUNCH + max(flops / FLOPS, moved / BANDWIDTH)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
