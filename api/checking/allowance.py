"""The result of a check, and its float32 allowance: the change that rounding alone makes to a run on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ...lowering.capture.calling import build_optimizer
from .cases import SEED, TOLERANCES, CheckCase, CheckResult
from .comparison import StepValues, Worst, largest, measure
from .reference import EagerRun

_DRAWS = 8
"""The number of runs with differently rounded weights."""


def result_of(case: CheckCase, worst: dict[str, Worst], tolerance: float | None) -> CheckResult:
    """
    Return the result of a comparison.

    In float32, errors above the tolerance are compared with the changes that rounding makes on one device.
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
    Return, by kind, the largest change among runs on one device with initial weights one unit in the last place off.

    A plan sums in another order, which changes results at least as much. The mapping is empty if a repeated run gives
    another result, because then the changes are not only caused by rounding.
    """
    first = _values(case, seed)
    if any(worst.error for worst in _worst(_values(case, seed), first).values()):
        return {}
    runs = (_worst(_values(case, seed, draw), first).values() for draw in range(1, _DRAWS + 1))
    return {kind: each.error for kind, each in largest(worst for run in runs for worst in run).items()}


def _values(case: CheckCase, seed: int, draw: int = 0) -> list[StepValues]:
    """Train on one device and return the values of each step; a nonzero `draw` perturbs the initial weights."""
    run, values = EagerRun(case.training_step(), case.dtype, seed), list[StepValues]()
    generator = torch.Generator().manual_seed(draw)
    for weight in run.model.parameters() if draw else ():
        units = torch.randint(-1, 2, weight.shape, generator=generator)
        weight.detach().mul_(1 + units * torch.finfo(weight.dtype).eps)
    for number, batch in enumerate(case.batches(), 1):
        values.append({key: value.clone() for key, value in run.step(batch, case.factor(number)).items()})
    return values


def _worst(found: list[StepValues], expected: list[StepValues]) -> dict[str, Worst]:
    pairs = enumerate(zip(found, expected, strict=True), 1)
    return largest(worst for number, (one, other) in pairs for worst in measure(one, other, number).values())
