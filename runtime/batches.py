"""The rows of each batch that a rank computes on or draws, and batches as ranks get them: global, or their own rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Sampler

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


class ShareSampler(Sampler[list[int]]):
    """
    The indices of one rank's rows of every batch, as the `batch_sampler` of a DataLoader.

    All ranks shuffle in the same order, so that together they see each global batch once.

    Args:
        batch: the number of rows of a global batch.
        rows: rows of the batch that this rank computes on (`DistributedStep.rows`).
        seed: seed of the order, together with the epoch; if None, the data set's order is used.
        last: this rank's rows of the partial batch at the end of an epoch; if None, the partial batch is skipped.

    `first` is the index of the first batch of the epoch; earlier batches are skipped.

    Raises:
        ValueError: rows are outside the batch, or the data set is smaller than a batch.
    """

    def __init__(self, length: int, batch: int, rows: range, seed: int | None = 0, last: range | None = None) -> None:
        if not 0 <= rows.start <= rows.stop <= batch or rows.step != 1:
            raise ValueError(f"the rows {rows} are not within the {batch} rows of a batch")
        if length < batch and last is None:
            raise ValueError(f"a data set of {length} samples has no full batch of {batch} rows")
        if last is not None and not 0 <= last.start <= last.stop <= length % batch:
            raise ValueError(f"the rows {last} are not within the {length % batch} rows of the last, partial batch")
        self.length, self.batch, self.rows, self.seed, self.epoch = length, batch, rows, seed, 0
        self.last = last
        self.first = 0

    def set_epoch(self, epoch: int) -> None:
        """Use the order of another epoch, the same on every rank."""
        self.epoch = epoch

    @property
    def sampler(self) -> ShareSampler:
        """The sampler itself: Lightning calls `set_epoch` on this attribute, as on the sampler of a `BatchSampler`."""
        return self

    def __len__(self) -> int:
        return self.length // self.batch + (self.last is not None)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        whole = self.length - self.length % self.batch
        for first in range(self.first * self.batch, whole, self.batch):
            yield order[first + self.rows.start : first + self.rows.stop]
        if self.last is not None and self.first < len(self):
            yield order[whole + self.last.start : whole + self.last.stop]

    def _order(self) -> list[int]:
        if self.seed is None:
            return list(range(self.length))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self.length, generator=generator).tolist()
