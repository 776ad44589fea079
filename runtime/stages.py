"""Programs of several stages: finding the stage of a rank, and its connections within and between stages."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .communicator import Communicator
from .groups import TIMEOUT, Handles, RankLayout
from .plan import Plan, PlanError
from .transfers import Channels, Lines

StepFunction = Callable[..., Any]

_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


class Stage(NamedTuple):
    """
    What the ranks of one mesh run: a program, or a stage of a pipeline.

    Args:
        plan: its plan.
        step: its function, of the communicator and the plan's inputs to the plan's outputs, on local tensors.
    """

    plan: Plan
    step: StepFunction


def my_stage(stages: Sequence[Stage]) -> Stage:
    """The stage of this rank of the job; StopIteration where it has none."""
    me = dist.get_rank() if dist.is_initialized() else 0
    return next(stage for stage in stages if me in stage.plan.ranks)


def connect(
    stages: Sequence[Stage],
    device: torch.device | str = "cpu",
    *,
    timeout: timedelta = TIMEOUT,
    checked: bool = False,
    lines: Lines | None = None,
    handles: Handles | None = None,
    communicator: type[Communicator] = Communicator,
) -> Communicator:
    """
    The communicator of this rank's stage, with channels to the others. Every rank of the job must call this.

    Args:
        timeout: of messages.
        checked: as in `Communicator`.
        lines, handles: to use again those of other programs of the same job; new ones are added to the latter.
        communicator: what to make.

    Raises:
        PlanError: stages on GPUs whose streams share one hardware queue.
    """
    plan = my_stage(stages).plan
    channels = None
    if len(stages) > 1:
        if torch.device(device).type == "cuda" and os.environ.get(_QUEUES) == "1":
            raise PlanError(
                f"{_QUEUES}=1 gives all streams of a GPU one hardware queue, where a receive holds up what another"
                " stage waits for, for ever; unset it, or train without stages"
            )
        transfers = dict.fromkeys(transfer for stage in stages for transfer in stage.plan.transfers)
        channels = Channels(transfers, lines or Lines(timeout), device)
    job = [RankLayout(each.mesh, each.ranks, each.process_groups()) for each, _ in stages]
    made = {"job": job, "channels": channels, "handles": handles, "timeout": timeout, "checked": checked}
    return communicator(plan.mesh, (), device, **made)
