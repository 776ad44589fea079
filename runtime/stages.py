"""Programs of several stages: the stage of a rank, its connections within and between stages; and running a text."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from .communicator import Communicator
from .groups import TIMEOUT, Handles, RankLayout, job_rank
from .plan import Plan, PlanError
from .transfers import Channels, Lines

StepFunction = Callable[..., Any]

_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


class Stage(NamedTuple):
    """
    A program, or a stage of a pipeline, that the ranks of one mesh run.

    Args:
        step: function of the communicator and the plan's inputs that returns the plan's outputs, as local tensors.
    """

    plan: Plan
    step: StepFunction


def my_stage(stages: Sequence[Stage]) -> Stage:
    """Return the stage of this rank of the job; StopIteration if it has none."""
    return next(stage for stage in stages if job_rank() in stage.plan.ranks)


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
    Create the communicator of this rank's stage, with channels to other stages. Every rank of the job must call this.

    Args:
        checked: as in `Communicator`.
        lines, handles: lines and groups of other programs of the same job, to reuse; new groups are added to `handles`.

    Raises:
        PlanError: there are several stages on GPUs, and all streams of a GPU share one hardware queue.
    """
    plan = my_stage(stages).plan
    channels = None
    if len(stages) > 1:
        if torch.device(device).type == "cuda" and os.environ.get(_QUEUES) == "1":
            raise PlanError(
                f"{_QUEUES}=1 gives all streams of a GPU one hardware queue, where a receive blocks for ever the work"
                " that another stage waits for; unset it, or train without stages"
            )
        transfers = dict.fromkeys(transfer for stage in stages for transfer in stage.plan.transfers)
        channels = Channels(transfers, lines or Lines(timeout), device)
    job = [RankLayout(stage_plan.mesh, stage_plan.ranks, stage_plan.process_groups()) for stage_plan, _ in stages]
    options = {"job": job, "channels": channels, "handles": handles, "timeout": timeout, "checked": checked}
    return communicator(plan.mesh, (), device, **options)


def run_text(text: str, name: str, **given: Any) -> dict[str, Any]:
    """
    Execute the text of a module and return its names.

    Args:
        name: file name in tracebacks, which show the lines of the text although no such file exists.
        given: names that the module can use.
    """
    # With a size and time of None, `linecache` keeps the lines.
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "shardwright_rewritten", **given}
    exec(compile(text, name, "exec"), names)
    return names
