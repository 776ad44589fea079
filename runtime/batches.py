"""Which rows of every batch a rank computes on, and the batches that ranks are given: global, or their own rows."""

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
    This rank's rows of a batch, every item unsplit along its other dims.

    Args:
        count: how many rows the global batch has; None for as many as the example.
    """

    batch: Batch
    count: int | None = None

    def pin_memory(self) -> LocalRows:
        """The same in pinned memory: what a DataLoader with ``pin_memory=True`` asks for."""
        items = items_of(self).items()
        pinned = {k: item.pin_memory() if isinstance(item, torch.Tensor) else item for k, item in items}
        return LocalRows(pinned, self.count)


def items_of(batch: Batch | LocalRows) -> Mapping[str, Any]:
    """The items of a batch by name: keys, or positions as strings."""
    given = batch.batch if isinstance(batch, LocalRows) else batch
    return given if isinstance(given, Mapping) else {str(i): item for i, item in enumerate(given)}


def batch_rows(plan: Plan, rank: int, plans: Sequence[Plan] = ()) -> tuple[int, range]:
    """
    How many rows a global batch has, and which of them `rank` computes on.

    Args:
        plans: of all stages; a stage in the middle of a pipeline takes nothing of a batch, and so no rows.

    Raises:
        PlanError: the items of the batch do not have their rows in common.
    """
    items = _with_rows(plan)
    if not items and (others := [value for each in plans for value in _with_rows(each)]):
        return others[0].shape[0], range(0)
    found = {(value.shape[0], (rows := value.slices(plan.mesh, rank)[0]).start, rows.stop) for value in items}
    if len(found) != 1:
        details = "; ".join(f"{value.name!r} has {list(value.shape)} as {value.sharding or 'whole'}" for value in items)
        raise PlanError(
            f"plan {plan.name!r} gives rank {rank} different rows of the items of a batch: {details or 'none'};"
            " hand it the global batch"
        )
    count, start, stop = found.pop()
    return count, range(start, stop)


def _with_rows(plan: Plan) -> list[Value]:
    return [value for value in plan.inputs if value.role == "batch" and value.shape]


def part_of_batch(value: Value, batch: Batch | LocalRows, mesh: Mesh, rank: int) -> torch.Tensor:
    """
    What `rank` needs of one item of a batch.

    Raises:
        PlanError: the batch lacks the item, or has it in another shape or kind of dtype.
    """
    items = items_of(batch)
    found = items.get(value.name)
    if not isinstance(found, torch.Tensor):
        raise PlanError(
            f"the batch has {'no' if found is None else type(found).__name__} entry {value.name!r}; "
            f"the plan expects {value}; its entries are {', '.join(map(repr, items))}"
        )
    slices, shape, wanted = value.slices(mesh, rank), value.shape, "the global batch"
    if isinstance(batch, LocalRows) and shape:
        rows = slices[0]
        shape, slices = (rows.stop - rows.start, *shape[1:]), (slice(None), *slices[1:])
        wanted = f"the rows {rows.start} to {rows.stop} of the batch that are of rank {rank}"
    both_floats = found.is_floating_point() and value.torch_dtype.is_floating_point
    if tuple(found.shape) != shape or not (both_floats or found.dtype == value.torch_dtype):
        raise PlanError(
            f"batch entry {value.name!r} has shape {list(found.shape)} and dtype {found.dtype}, the plan "
            f"expects {wanted}, {list(shape)} and {value.torch_dtype}; {OTHER_SHAPE.instead}"
        )
    return found[slices]


def no_rows(plan: Plan) -> Batch:
    """A batch of no rows: what a rank without a share is given."""
    items = [value for value in plan.inputs if value.role == "batch"]
    found = {value.name: torch.empty((0, *value.shape[1:]), dtype=value.torch_dtype) for value in items}
    return list(found.values()) if all(name.isdigit() for name in found) else found
