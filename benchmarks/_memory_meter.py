"""
`MemoryMeter`: counts the bytes of tensors that a rank holds while it computes, to measure the peak of a plan.

Every storage that an operation returns is counted once, until it is freed. The meter sees no workspace that a kernel
allocates and frees itself. On a GPU, torch's allocator statistics give the allocated bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.runtime.executor import Executor

KEPT = ("param", "buffer", "state", "step_count", "constant")
"""Roles of the values that a rank keeps between steps."""


class MemoryMeter(TorchDispatchMode):
    """Counts the bytes of `held` tensors and of results of operations, except memory and views of `lent` tensors."""

    def __init__(self, held: Iterable[torch.Tensor] = (), lent: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.bytes = 0
        """Bytes held now."""
        self.peak = 0
        """Largest number of bytes held at any time."""
        self.peak_op = ""
        """Operation that caused the peak, by torch's name: `aten.mm.default`."""
        self._known: dict[int, int] = {}
        for tensor in lent:
            self._enter(tensor.untyped_storage(), 0)
        for tensor in held:
            self._note(tensor, "held from before")

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operation and count its results."""
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor, str(func))
        return result

    def _note(self, tensor: torch.Tensor, op: str) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        self._enter(storage, storage.nbytes())
        if self.bytes > self.peak:
            self.peak, self.peak_op = self.bytes, op

    def _enter(self, storage: torch.UntypedStorage, size: int) -> None:
        if storage._cdata in self._known:
            return
        self._known[storage._cdata] = size
        self.bytes += size
        weakref.finalize(storage, self._gone, storage._cdata).atexit = False

    def _gone(self, key: int) -> None:
        self.bytes -= self._known.pop(key)


def peak_by_tensors(executor: Executor, batch: dict[str, Any]) -> tuple[int, str]:
    """Run a step, and return the peak bytes of its tensors and the operation that caused the peak."""
    kept = [executor.local(value) for value in executor.plan.inputs if value.role in KEPT]
    tensors = [item for item in batch.values() if isinstance(item, torch.Tensor)]
    lent = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    parts = [executor._batch_part(value, batch) for value in executor.plan.inputs if value.role == "batch"]
    # Parts of a batch that are views are copied: a data loader would give each rank its own memory.
    own = [part.clone() for part in parts if part.untyped_storage().data_ptr() in lent]
    meter = MemoryMeter([*kept, *own], tensors)
    with meter:
        executor.step(batch)
    return meter.peak, meter.peak_op


def peak_by_allocator(executor: Executor, batch: dict[str, Any], before: int) -> int:
    """
    Run a step and return its peak bytes by torch's CUDA allocator, without the bytes that were allocated `before`.
    """
    device = executor.comm.device
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    executor.step(batch)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
