"""What one device differs from itself by in float32: with the rows of each batch in another order, and from float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...lowering.capture.calling import Batch, batch_items
from ..batch_form import BatchForm
from .comparison import StepValues, Worst, largest, measure
from .reference import EagerRun

if TYPE_CHECKING:
    from .cases import CheckCase

_ORDERS = range(4)
"""The orders of rows that are tried; 0 is their own."""

_EXACT = 1e-10
"""By how much a run in float64 may differ where the order of rows changes nothing but sums."""


def own_error(case: CheckCase, seed: int) -> Mapping[str, float]:
    """
    By kind, the largest error of runs on one device whose sums are rounded otherwise.

    Orders of rows do not count where they change what is computed, as with dropout; nothing does where a run changes
    when it is repeated.
    """
    exact = replace(case, dtype=torch.float64)
    first, in_float64 = _values(case, seed), _values(exact, seed)
    alike = [
        max(w.error for w in _worst(_values(exact, seed, order), in_float64).values()) < _EXACT for order in _ORDERS
    ]
    if not alike[0]:
        return {}
    orders = [order for order, is_alike in zip(_ORDERS, alike, strict=True) if order and is_alike]
    found = [_worst(in_float64, first), *(_worst(_values(case, seed, order), first) for order in orders)]
    return {kind: each.error for kind, each in largest(w for worst in found for w in worst.values()).items()}


def _values(case: CheckCase, seed: int, order: int = 0) -> list[StepValues]:
    """What each step computes on one device, with the rows of batches in their own order (0) or in another."""
    step = case.training_step()
    run, rows = EagerRun(step, case.dtype, seed), BatchForm(step.batch, step.loss is not None, step.no_rows)
    batches = (
        _reordered(batch, rows, number + order) if order else batch for number, batch in enumerate(case.batches())
    )
    return [_copied(run.step(batch, case.factor(number))) for number, batch in enumerate(batches, 1)]


def _copied(values: StepValues) -> StepValues:
    return {key: value.clone() for key, value in values.items()}


def _reordered(batch: Batch, form: BatchForm, seed: int) -> Batch:
    order = torch.randperm(form.rows, generator=torch.Generator().manual_seed(seed))
    items = {name: item[order] if form.has_rows(name) else item for name, item in batch_items(batch).items()}
    return items if isinstance(batch, dict) else tuple(items.values())


def _worst(found: list[StepValues], expected: list[StepValues]) -> dict[str, Worst]:
    """The largest error of each kind, in the dtypes of what is found."""
    return largest(
        worst
        for number, (one, other) in enumerate(zip(found, expected, strict=True), 1)
        for worst in measure(one, {key: value.to(one[key].dtype) for key, value in other.items()}, number).values()
    )
