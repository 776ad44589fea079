"""The peak memory of a rank in a step: by tensors on a CPU, by the allocator on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from _memory_meter import MemoryMeter

from shardwright.runtime.executor import Executor

KEPT = ("param", "buffer", "state", "step_count", "constant")
"""Roles of the values that a rank keeps between steps."""


def peak_by_tensors(executor: Executor, batch: dict[str, Any]) -> tuple[int, str]:
    """Run a step, and return the peak bytes of its tensors and the operation that caused the peak."""
    kept = [executor.local(value) for value in executor.plan.inputs if value.role in KEPT]
    meter = MemoryMeter([*kept, *_own_rows(executor, batch)], _tensors(batch))
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


def _tensors(batch: dict[str, Any]) -> list[torch.Tensor]:
    return [item for item in batch.values() if isinstance(item, torch.Tensor)]


def _own_rows(executor: Executor, batch: dict[str, Any]) -> list[torch.Tensor]:
    """Return copies of the parts of a batch that are views: a data loader would give each rank its own memory."""
    lent = {tensor.untyped_storage().data_ptr() for tensor in _tensors(batch)}
    parts = [executor._batch_part(value, batch) for value in executor.plan.inputs if value.role == "batch"]
    return [part.clone() for part in parts if part.untyped_storage().data_ptr() in lent]
