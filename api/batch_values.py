"""The items that a batch may have: tensors that can be computed on, and plain values, which are part of the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..ir.not_supported import ARRAY, CHANGED_VALUE, CLOSURE, INPUT_GRADIENT, LAYOUT, NESTED, OTHER_ITEM
from ..lowering.capture.calling import Batch, batch_items
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
