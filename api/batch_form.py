"""The requirements on a batch: tensors that can be computed on, the plain values of the example, and equal rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch

from ..ir.not_supported import ARRAY, CHANGED_VALUE, CLOSURE, INPUT_GRADIENT, LAYOUT, NESTED, OTHER_ITEM
from ..lowering.capture.calling import LABELS, Batch, batch_items
from ..runtime.batches import LocalRows, items_of
from ..runtime.plan import PlanError


def item_refusal(item: object) -> str | None:
    """Return why an item may not be in a batch, and an alternative; return None for an allowed item."""
    if isinstance(item, torch.Tensor):
        if item.layout != torch.strided or item.is_nested:
            return f"is a tensor of layout {item.layout}; {LAYOUT.instead}"
        return f"requires a gradient; {INPUT_GRADIENT.instead}" if item.requires_grad else None
    if _holds_tensor(item):
        return f"is a {type(item).__name__} that holds tensors; {NESTED.instead}"
    if hasattr(item, "__array__") and getattr(item, "ndim", 0):
        return f"is a {type(item).__name__}; {ARRAY.instead}"
    return None


def _holds_tensor(item: object) -> bool:
    items = item.values() if isinstance(item, Mapping) else item if isinstance(item, tuple | list) else ()
    return any(isinstance(value, torch.Tensor) or _holds_tensor(value) for value in items)


@dataclass(frozen=True)
class BatchValues:
    """
    The plain values that every batch must have.

    Args:
        tensors: the names of items that are tensors.
        values: the other items, which have the same value in all steps.
    """

    tensors: frozenset[str]
    values: Mapping[str, object]

    @classmethod
    def of(cls, batch: Batch) -> BatchValues:
        """Return the plain values of an example batch."""
        items = batch_items(batch)
        tensors = frozenset(name for name, item in items.items() if isinstance(item, torch.Tensor))
        return cls(tensors, {name: item for name, item in items.items() if name not in tensors})

    def verify(self, batch: object) -> None:
        """
        Check a batch, or a rank's rows of one; shapes and dtypes are checked when rows are taken.

        Raises:
            PlanError: an item or its value differs from the example's, or a tensor cannot be computed on.
        """
        if callable(batch):
            raise PlanError(f"step() was given a {type(batch).__name__}; {CLOSURE.instead}")
        if not isinstance(batch, tuple | list | dict | LocalRows):
            return  # `BatchForm` reports the expected type.
        items = items_of(batch)
        for name, item in items.items():
            if name not in self.tensors and name not in self.values:
                known = ", ".join(map(repr, (*self.tensors, *self.values)))
                raise PlanError(f"the batch has an entry {name!r}, but the example had {known}; {OTHER_ITEM.instead}")
            if name in self.tensors and (refusal := item_refusal(item)) is not None:
                raise PlanError(f"batch entry {name!r} {refusal}")
        for name, value in self.values.items():
            # A loader's rows contain only tensors.
            if not (_is_same(items.get(name), value) or (isinstance(batch, LocalRows) and name not in items)):
                found = repr(items[name]) if name in items else "missing"
                raise PlanError(
                    f"batch entry {name!r} is {found}, but the step was planned for {value!r}; {CHANGED_VALUE.instead}"
                )


def _is_same(found: object, value: object) -> bool:
    if found is value:
        return True
    same: object = type(found) is type(value) and found == value
    return same is True


Shapes: TypeAlias = "tuple[tuple[str, tuple[int, ...]], ...]"
"""The name and shape of each tensor item, in the order of the example."""


@dataclass(frozen=True)
class BatchForm:
    """
    The form of batches that a step takes.

    Args:
        example: the batch that the step was planned with.
        has_labels: whether a loss function takes the labels, and not the model.
        no_rows: the items that have no rows, whatever their first dim is.
    """

    example: Batch
    has_labels: bool
    no_rows: frozenset[str] = frozenset()

    @cached_property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The tensors of the example, by name."""
        return {name: item for name, item in batch_items(self.example).items() if isinstance(item, torch.Tensor)}

    @cached_property
    def rows(self) -> int:
        """The number of rows of the example; 0 if no item has rows."""
        with_rows = (each for name, each in self.tensors.items() if name not in self.no_rows)
        return next((each.shape[0] for each in with_rows if each.dim()), 0)

    def has_rows(self, name: str) -> bool:
        """Return whether the first dim of an item counts the rows of the batch."""
        tensor = self.tensors.get(name)
        return tensor is not None and tensor.shape[:1] == (self.rows,) and name not in self.no_rows

    @cached_property
    def labels(self) -> str:
        """The name of the item that the loss function takes, or an empty string without a loss function."""
        if not self.has_labels:
            return ""
        return LABELS if isinstance(self.example, Mapping) else str(len(self.example) - 1)

    def shapes(self, call: str, batch: object, *, of_model: bool = False) -> Shapes:
        """
        Check a batch and return its shapes.

        Args:
            call: the user's call, for messages.
            of_model: whether only the inputs of the model are required: labels and optional inputs may be missing.

        Raises:
            PlanError: an item is missing, unknown or of another kind, or the items have different numbers of rows.
        """
        items = self._items(call, batch)
        required = {name: each for name, each in self.tensors.items() if not (of_model and name == self.labels)}
        for name in items:
            if name not in batch_items(self.example):
                raise PlanError(f"{call} was given an item {name!r}, which the example batch lacks: {self._expected()}")
        shapes: list[tuple[str, tuple[int, ...]]] = []
        for name, example in required.items():
            if name in items:
                shapes.append((name, self._shape(call, name, items[name], example)))
            elif not of_model or self.has_labels:
                given = ", ".join(map(repr, items)) or "nothing"
                raise PlanError(f"{call} was given no item {name!r}: found {given}, expected {self._expected()}")
        self._verify_rows(call, dict(shapes))
        return tuple(shapes)

    def _items(self, call: str, batch: Any) -> Mapping[str, Any]:
        expected = dict if isinstance(self.example, Mapping) else tuple
        is_mapping = isinstance(batch, Mapping)
        if (not is_mapping and not isinstance(batch, Sequence)) or isinstance(batch, str):
            more = "; write (x,)" if isinstance(batch, torch.Tensor) and expected is tuple else ""
            raise PlanError(f"{call} was given a {type(batch).__name__}, expected a {expected.__name__}{more}")
        if isinstance(self.example, Mapping) and not is_mapping:
            raise PlanError(f"{call} was given a {type(batch).__name__}, expected a dict with {self._expected()}")
        given: Any = batch
        return batch_items(given)

    def _shape(self, call: str, name: str, item: object, example: torch.Tensor) -> tuple[int, ...]:
        wanted = f"{example.dim()} dims, {example.dtype} (the example is {list(example.shape)})"
        if not isinstance(item, torch.Tensor):
            raise PlanError(f"{call} was given {type(item).__name__} as item {name!r}, expected a tensor of {wanted}")
        floats = item.is_floating_point() and example.is_floating_point()
        if item.dim() != example.dim() or not (floats or item.dtype == example.dtype):
            raise PlanError(
                f"{call} was given item {name!r} of shape {list(item.shape)} and {item.dtype}, expected {wanted}"
            )
        return tuple(item.shape)

    def _verify_rows(self, call: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Check that the items with rows in the example have equal, nonzero numbers of rows here."""
        counts = {name: shape[0] for name, shape in shapes.items() if self.has_rows(name)}
        if len(set(counts.values())) > 1:
            details = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
            raise PlanError(f"{call} was given items with different numbers of rows: {details}")
        if self.rows and 0 in counts.values():
            raise PlanError(f"{call} was given a batch without rows")

    def like(self, shapes: Shapes, plain: Mapping[str, Any]) -> Batch:
        """Return a batch of these shapes on the meta device, with the example's dtypes and the given plain values."""
        sizes = dict(shapes)
        items: dict[str, Any] = {}
        for name, item in batch_items(self.example).items():
            if name in sizes:
                items[name] = torch.empty(sizes[name], dtype=item.dtype, device="meta")
            elif name in plain:
                items[name] = plain[name]
        return items if isinstance(self.example, Mapping) else tuple(items.values())

    def plain(self, batch: Any, *, of_model: bool = False) -> dict[str, Any]:
        """Return the plain values of a batch, which are not tensors; missing ones are taken from the example."""
        given = {**batch_items(self.example), **batch_items(batch)} if not of_model else batch_items(batch)
        names = batch_items(self.example)
        return {
            name: item
            for name, item in given.items()
            if name in names and name not in self.tensors and not (of_model and name == self.labels)
        }

    def _expected(self) -> str:
        return shapes_text(tuple((name, tuple(each.shape)) for name, each in self.tensors.items()))


def shapes_text(shapes: Shapes) -> str:
    """Return shapes as text: `'x' [16, 8], 'y' [16]`."""
    return ", ".join(f"{name!r} {list(shape)}" for name, shape in shapes)
