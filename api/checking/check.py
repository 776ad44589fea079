"""
Checks that a plan trains as one device does: they compare losses, gradients and all state, step by step.

`check_on_ranks` runs lowered programs on local gloo processes, and `check_interpreted` runs the IR for all ranks in
this process. Both compare with eager PyTorch by the measure of `comparison`. Every step has another batch.

In float32 the parameters and buffers of AdamW are not compared: AdamW divides a gradient by its own size, and so turns
the noise of a gradient that should be zero into a full step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ...lowering.capture.calling import build_optimizer
from .cases import SEED, TOLERANCES, CheckCase, CheckResult, imported, plan_case
from .comparison import StepValues, Worst, largest, measure
from .reference import EagerRun


def check_interpreted(case: CheckCase, tolerance: float | None = None) -> CheckResult:
    """
    Run the IR of a case for all ranks in this process, after any pipeline of passes.

    Raises:
        CaptureError, PassError: the case cannot be planned.
    """
    from .interpreted import InterpretedRun

    step, module = case.training_step(), imported(case)
    passes = plan_case(case, module)
    run = InterpretedRun(module, EagerRun(step, case.dtype, SEED).model, SEED, explicit="insert-resharding" in passes)
    reference = EagerRun(step, case.dtype, SEED)
    worst: dict[str, Worst] = {}
    for number, batch in enumerate(case.batches(), 1):
        expected = reference.step(batch, case.factor(number))
        worst = largest((*worst.values(), *measure(run.step(batch, case.factor(number)), expected, number).values()))
    return result_of(case, worst, tolerance)


def check_on_ranks(
    cases: Sequence[CheckCase], world_size: int, tolerance: float | None = None, timeout: float = 600.0
) -> list[CheckResult]:
    """
    Run the programs of all cases, one after the other, in one launch of `world_size` gloo processes.

    The result of a case that cannot be planned has a message.

    Args:
        tolerance: the allowed error; by default the tolerance of the case's dtype.
        timeout: seconds for all cases together.

    Raises:
        ValueError: the mesh of a case has another number of devices.
        RankError: a rank failed while running; the message names the case.
    """
    from ...runtime.spawn import run_ranks
    from .ranks import check_all

    for case in cases:
        if case.mesh.device_count != world_size:
            raise ValueError(f"{case}: its mesh has {case.mesh.device_count} devices, expected {world_size}")
    outcomes = run_ranks(check_all, world_size, tuple(cases), timeout=timeout)[0]
    return [
        CheckResult(case, message=outcome) if isinstance(outcome, str) else result_of(case, outcome, tolerance)
        for case, outcome in zip(cases, outcomes, strict=True)
    ]


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
