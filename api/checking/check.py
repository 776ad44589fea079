"""
Checks that a plan trains as one device does: they compare losses, gradients and all state, step by step.

`check_on_ranks` runs lowered programs on local gloo processes, and `check_interpreted` runs the IR for all ranks in
this process. Both compare with eager PyTorch by the measure of `comparison`. Every step has another batch.

In float32 the parameters and buffers of AdamW are not compared: AdamW divides a gradient by its own size, and so turns
the noise of a gradient that should be zero into a full step.
"""

from __future__ import annotations

from collections.abc import Sequence

from .allowance import result_of
from .cases import SEED, CheckCase, CheckResult, imported, plan_case
from .comparison import Worst, largest, measure
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
