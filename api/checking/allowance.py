"""The result of a check, and its allowance in float32: the error of one device whose sums are in other orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ...lowering.capture.calling import batch_items, build_optimizer
from ..batch_form import BatchForm
from .cases import SEED, TOLERANCES, CheckCase, CheckResult
from .comparison import StepValues, Worst, largest, measure
from .reference import EagerRun

_ORDERS = range(4)
"""The orders of rows that are tried; 0 is their own."""

_EXACT = 1e-10
"""An order of rows counts if it changes a run in float64 by less: then it affects the rounding of sums alone."""


def result_of(case: CheckCase, worst: dict[str, Worst], tolerance: float | None) -> CheckResult:
    """
    Return the result of a comparison.

    In float32, errors above the tolerance are compared with the errors of one device whose sums are in another order.
    """
    skipped = () if case.dtype is torch.float64 or not _is_adamw(case) else ("parameter", "buffer")
    errors = tuple(each for kind, each in worst.items() if kind not in skipped)
    if tolerance is not None:
        return CheckResult(case, errors, tolerance=tolerance)
    result = CheckResult(case, errors, tolerance=TOLERANCES[case.dtype])
    if result.passed or case.dtype is torch.float64:
        return result
    return replace(result, own=own_error(case, SEED))


def _is_adamw(case: CheckCase) -> bool:
    parameters = {"weight": torch.nn.Parameter(torch.zeros(1, 1)), "bias": torch.nn.Parameter(torch.zeros(1))}
    return isinstance(build_optimizer(case.training_step().optimizer, parameters), torch.optim.Adam)


def own_error(case: CheckCase, seed: int) -> Mapping[str, float]:
    """
    Return the largest error of each kind among runs on one device that differ in the order of their sums.

    An order of rows is skipped if it changes the result beyond rounding, as dropout does. The mapping is empty if a
    repeated run gives another result.
    """
    exact = replace(case, dtype=torch.float64)
    first, in_float64 = _values(case, seed), _values(exact, seed)
    found = [_worst(in_float64, first)]
    for order in _ORDERS:
        if all(worst.error < _EXACT for worst in _worst(_values(exact, seed, order), in_float64).values()):
            found.append(_worst(_values(case, seed, order), first))
        elif not order:
            return {}
    return {kind: each.error for kind, each in largest(w for worst in found for w in worst.values()).items()}


def _values(case: CheckCase, seed: int, order: int = 0) -> list[StepValues]:
    """Train on one device, rows of batches in their own order (0) or in another, and return the values of each step."""
    step, found = case.training_step(), list[StepValues]()
    run, form = EagerRun(step, case.dtype, seed), BatchForm(step.batch, step.loss is not None, step.no_rows)
    for number, batch in enumerate(case.batches(), 1):
        items = batch_items(batch)
        if order:
            rows = torch.randperm(form.rows, generator=torch.Generator().manual_seed(number + order))
            items = {name: item[rows] if form.has_rows(name) else item for name, item in items.items()}
        given = items if isinstance(batch, dict) else tuple(items.values())
        found.append({key: value.clone() for key, value in run.step(given, case.factor(number)).items()})
    return found


def _worst(found: list[StepValues], expected: list[StepValues]) -> dict[str, Worst]:
    """Return the largest error of each kind, in the dtypes of `found`."""
    others = ({key: value.to(one[key].dtype) for key, value in other.items()} for one, other in zip(found, expected))
    pairs = enumerate(zip(found, others, strict=True), 1)
    return largest(worst for number, (one, other) in pairs for worst in measure(one, other, number).values())
