"""The rows of each batch that a rank computes on, and the batches that ranks receive: global, or their own rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..ir.mesh import Mesh
from ..ir.not_supported import OTHER_SHAPE
from .plan import Plan, PlanError, Value

Batch = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True)
class LocalRows:
    """
    This rank's rows of a batch; the other dims of each item are unsplit.

    Args:
        count: the number of rows of the global batch; as many as the example has if None.
    """

    batch: Batch
    count: int | None = None

    def pin_memory(self) -> LocalRows:
        """Return the rows in pinned memory; a DataLoader with ``pin_memory=True`` calls this."""
        items = items_of(self).items()
        pinned = {k: item.pin_memory() if isinstance(item, torch.Tensor) else item for k, item in items}
        return LocalRows(pinned, self.count)


def items_of(batch: Batch | LocalRows) -> Mapping[str, Any]:
    """Return the items of a batch by name: keys, or positions as strings."""
    items = batch.batch if isinstance(batch, LocalRows) else batch
    return items if isinstance(items, Mapping) else {str(i): item for i, item in enumerate(items)}


def batch_rows(plan: Plan, rank: int, plans: Sequence[Plan] = ()) -> tuple[int, range]:
    """
    Return the number of rows of a global batch, and the rows that `rank` computes on.

    Args:
        plans: plans of all stages; a stage in the middle of a pipeline takes no part of a batch.

    Raises:
        PlanError: the items of the batch do not share their rows.
    """
    items = _with_rows(plan)
    if not items and (others := [value for other_plan in plans for value in _with_rows(other_plan)]):
        return others[0].shape[0], range(0)
    ranges = {(value.shape[0], (rows := value.slices(plan.mesh, rank)[0]).start, rows.stop) for value in items}
    if len(ranges) != 1:
        details = "; ".join(f"{value.name!r} has {list(value.shape)} as {value.sharding or 'whole'}" for value in items)
        raise PlanError(
            f"plan {plan.name!r} gives rank {rank} different rows of the items of a batch: {details or 'none'};"
            " pass the global batch to step()"
        )
    count, start, stop = ranges.pop()
    return count, range(start, stop)


def _with_rows(plan: Plan) -> list[Value]:
    return [value for value in plan.inputs if value.role == "batch" and value.shape]


def part_of_batch(value: Value, batch: Batch | LocalRows, mesh: Mesh, rank: int) -> torch.Tensor:
    """
    Return the part of one batch item that `rank` needs.

    Raises:
        PlanError: the batch lacks the item, or the item has another shape or kind of dtype.
    """
    items = items_of(batch)
    item = items.get(value.name)
    if not isinstance(item, torch.Tensor):
        raise PlanError(
            f"the batch has {'no' if item is None else type(item).__name__} entry {value.name!r}; "
            f"the plan expects {value}; its entries are {', '.join(map(repr, items))}"
        )
    slices, shape, wanted = value.slices(mesh, rank), value.shape, "the global batch"
    if isinstance(batch, LocalRows) and shape:
        rows = slices[0]
        shape, slices = (rows.stop - rows.start, *shape[1:]), (slice(None), *slices[1:])
        wanted = f"the rows {rows.start} to {rows.stop} of the batch that belong to rank {rank}"
    both_floats = item.is_floating_point() and value.torch_dtype.is_floating_point
    if tuple(item.shape) != shape or not (both_floats or item.dtype == value.torch_dtype):
        raise PlanError(
            f"batch entry {value.name!r} has shape {list(item.shape)} and dtype {item.dtype}, the plan "
            f"expects {wanted}, {list(shape)} and {value.torch_dtype}; {OTHER_SHAPE.instead}"
        )
    return item[slices]


def no_rows(plan: Plan) -> Batch:
    """Return a batch of no rows, for a rank whose share is empty."""
    items = [value for value in plan.inputs if value.role == "batch"]
    empty = {value.name: torch.empty((0, *value.shape[1:]), dtype=value.torch_dtype) for value in items}
    return list(empty.values()) if all(name.isdigit() for name in empty) else empty
