"""Transfers between meshes, in one process: what the unit tasks of a plan deliver."""

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
    What the ranks of `receivers` hold after these tasks; every byte comes from what the senders hold.

    Args:
        at: of temporal axes that are unrolled, the part that crosses.

    Raises:
        ValueError: a sender lacks the slice that it has to send, or a receiver does not get all of its part.
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
    shape = [each.stop - each.start for each in wanted]
    result, there = first.new_empty(shape), torch.zeros(shape, dtype=torch.bool)
    for task in tasks:
        sent = _sent(task, source, senders)
        inside = [
            (max(begin, each.start), min(end, each.stop)) for (begin, end), each in zip(task.slice, wanted, strict=True)
        ]
        if any(begin > end for begin, end in inside):
            continue
        into = tuple(slice(b - each.start, e - each.start) for (b, e), each in zip(inside, wanted, strict=True))
        out_of = tuple(slice(b - begin, e - begin) for (b, e), (begin, _) in zip(inside, task.slice, strict=True))
        result[into], there[into] = sent[out_of], True
    if not there.all():
        missing = int((~there).sum())
        raise ValueError(f"no task sends rank {rank} {missing} of the {there.numel()} elements of its part")
    return result


def _sent(task: Task, source: Spread, senders: Grid) -> torch.Tensor:
    """The slice of a task, cut out of what its sender holds."""
    for device, (rank, part) in enumerate(zip(senders.ranks, senders.parts, strict=True)):
        if (rank, part) != (task.sender, task.part):
            continue
        held = local_slices(source.shape, source.sharding, senders.mesh, device)
        value = source.parts[device]
        pairs = list(zip(task.slice, held, strict=True))
        if value is not None and all(each.start <= begin and end <= each.stop for (begin, end), each in pairs):
            return value[tuple(slice(begin - each.start, end - each.start) for (begin, end), each in pairs)]
    raise ValueError(f"rank {task.sender} does not hold the slice that it has to send: {task}")
