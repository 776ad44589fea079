"""Run the unit tasks of transfers between meshes in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from ...ir.sharding import Sharding, local_slices
from ...ir.unit_tasks import Grid, Task
from .local_values import Spread


def deliver(
    tasks: Sequence[Task],
    source: Spread,
    senders: Grid,
    target: Sharding,
    receivers: Grid,
    at: Mapping[str, int] = MappingProxyType({}),
) -> Spread:
    """
    Return the value on the ranks of `receivers` after these tasks, built only from the shards of the senders.

    Args:
        at: unrolled temporal axis -> part that is transferred.

    Raises:
        ValueError: a sender lacks the slice that it must send, or a receiver lacks elements of its shard.
    """
    parts: list[torch.Tensor | None] = []
    crossing = receivers.parts_at(at)
    for device, rank in enumerate(receivers.ranks):
        if receivers.parts[device] not in crossing:
            parts.append(None)
            continue
        part = receivers.parts[device] if receivers.is_over_time(target) else 0
        mine = [task for task in tasks if task.part == part and rank in task.receivers]
        wanted = local_slices(source.shape, target, receivers.mesh, device)
        parts.append(_received(mine, source, senders, wanted, rank))
    return Spread(source.shape, target, tuple(parts), receivers.mesh)


def _received(
    tasks: Sequence[Task], source: Spread, senders: Grid, wanted: tuple[slice, ...], rank: int
) -> torch.Tensor:
    first = next(part for part in source.parts if part is not None)
    shape = [bounds.stop - bounds.start for bounds in wanted]
    result, filled = first.new_empty(shape), torch.zeros(shape, dtype=torch.bool)
    for task in tasks:
        sent = _sent(task, source, senders)
        inside = [
            (max(begin, bounds.start), min(end, bounds.stop))
            for (begin, end), bounds in zip(task.slice, wanted, strict=True)
        ]
        if any(begin > end for begin, end in inside):
            continue
        into = tuple(slice(b - bounds.start, e - bounds.start) for (b, e), bounds in zip(inside, wanted, strict=True))
        out_of = tuple(slice(b - begin, e - begin) for (b, e), (begin, _) in zip(inside, task.slice, strict=True))
        result[into], filled[into] = sent[out_of], True
    if not filled.all():
        missing = int((~filled).sum())
        raise ValueError(f"no task sends rank {rank} {missing} of the {filled.numel()} elements of its part")
    return result


def _sent(task: Task, source: Spread, senders: Grid) -> torch.Tensor:
    """Return the slice of a task from the shard of its sender."""
    for device, (rank, part) in enumerate(zip(senders.ranks, senders.parts, strict=True)):
        if (rank, part) != (task.sender, task.part):
            continue
        held = local_slices(source.shape, source.sharding, senders.mesh, device)
        value = source.parts[device]
        pairs = list(zip(task.slice, held, strict=True))
        if value is not None and all(bounds.start <= begin and end <= bounds.stop for (begin, end), bounds in pairs):
            return value[tuple(slice(begin - bounds.start, end - bounds.start) for (begin, end), bounds in pairs)]
    raise ValueError(f"rank {task.sender} does not hold the slice that it has to send: {task}")
