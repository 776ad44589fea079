"""Losses that are not finite: such a step ends the job, or is skipped, and a message names the ranks and values."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist

from .agreement import of_all_ranks
from .batches import Batch, LocalRows, part_of_batch
from .executor import Executor
from .plan import Plan, PlanError

LOG = logging.getLogger("shardwright")

OnNan = Literal["raise", "skip", "ignore"]
"""What becomes of a loss that is nan or infinite."""

SKIPPED = "skipped"
"""The metric of a program that skips such steps: 1 where it did, else 0."""

_LISTED = 3


class NonFiniteError(PlanError):
    """A loss that is nan or infinite; the message says where it comes from, as far as that is known."""


def verify_on_nan(on_nan: str) -> None:
    """
    Check what is to become of a loss that is no number.

    Raises:
        PlanError: it is none of `OnNan`.
    """
    if on_nan not in ("raise", "skip", "ignore"):
        raise PlanError(f"on_nan={on_nan!r}: expected 'raise', 'skip' or 'ignore'")


def skips(plans: Sequence[Plan]) -> bool:
    """Whether a program skips steps whose loss or gradients are not finite."""
    return any(each.role == "metric" and each.name == SKIPPED for plan in plans for each in plan.outputs)


@dataclass
class FiniteLosses:
    """
    Looks at the loss of every step, which is the same on all ranks, or at whether the program has skipped it.

    On CUDA it is that of the step before, for the host would wait for the one that it has just begun.

    `skipped` counts the steps that were skipped.

    Raises:
        PlanError: steps are to be skipped, and the program was planned without that.
    """

    executor: Executor
    on_nan: OnNan = "raise"
    skipped: int = field(default=0, init=False)
    _before: tuple[int, torch.Tensor, torch.Tensor, Batch | LocalRows] | None = None

    def __post_init__(self) -> None:
        if self.on_nan == "skip" and not skips(self.executor.plans):
            raise PlanError(
                f"plan {self.executor.plan.name!r} does not skip steps that are not finite: plan it with "
                "parallelize(on_nan='skip'), or TrainingStep(skip_non_finite=True)"
            )

    def see(self, number: int, loss: torch.Tensor, batch: Batch | LocalRows) -> None:
        """
        Look at the loss of a step; every rank must call this.

        Raises:
            NonFiniteError: on every rank, if it is not finite, and such steps are not skipped.
        """
        if self.on_nan == "ignore":
            return
        ready = (number, loss, self.executor.metrics[SKIPPED] if self.on_nan == "skip" else loss, batch)
        if loss.device.type == "cuda":
            ready, self._before = self._before, ready
        if ready is None:
            return
        number, loss, looked_at, batch = ready
        if self.on_nan == "skip":
            if looked_at.item():
                self._skip(number, loss.item(), batch)
        elif not math.isfinite(value := looked_at.item()):
            mend = "and resume from the last checkpoint, or give on_nan='skip' or 'ignore'"
            raise NonFiniteError(f"the loss of step {number} is {value}: {self._source(batch)}; {mend}")

    def _skip(self, number: int, value: float, batch: Batch | LocalRows) -> None:
        """Count a step that was skipped; at the first, rank 0 says why."""
        self.skipped += 1
        if self.skipped > 1:
            return
        source = self._source(batch)
        if not dist.is_initialized() or dist.get_rank() == 0:
            LOG.warning(
                "step %d was skipped: its loss is %s, and that or a gradient is not finite: %s; further steps of this "
                "kind are skipped and counted without a message",
                number,
                value,
                source,
            )

    def _source(self, batch: Batch | LocalRows) -> str:
        """What made the loss of a step not finite, and what helps; every rank must call this."""
        everyone = of_all_ranks((socket.gethostname(), self._given(batch), self._held()))
        where = [f"rank {rank} ({host}): {given}" for rank, (host, given, _) in enumerate(everyone) if given]
        if where:
            more = f"; and {len(where) - _LISTED} more ranks" if len(where) > _LISTED else ""
            return f"it was given numbers that are not finite, {'; '.join(where[:_LISTED])}{more}; mend the data"
        broken = sorted({name for _, _, names in everyone for name in names})
        weights = f" (after it {', '.join(broken[:_LISTED])} are not finite)" if broken else ""
        return (
            f"all that the ranks were given is finite, so the step itself made it{weights}; lower the learning "
            "rate, clip gradients (clip_norm=), or look at divisions and logarithms in the model"
        )

    def _given(self, batch: Batch | LocalRows) -> str:
        """What is not finite of this rank's parts of a batch; empty for nothing."""
        plan, comm = self.executor.plan, self.executor.comm
        for value in plan.inputs:
            if value.role != "batch" or not value.torch_dtype.is_floating_point:
                continue
            try:
                part = part_of_batch(value, batch, comm.mesh, comm.rank)
            except PlanError:
                # The batch of another shape that was declared.
                continue
            if count := int((~torch.isfinite(part)).sum()):
                return f"{count} in item {value.name!r}"
        return ""

    def _held(self) -> list[str]:
        """Some of this rank's parameters that are not finite."""
        parameters = [value for value in self.executor.plan.inputs if value.role == "param"]
        return [value.name for value in parameters if not torch.isfinite(self.executor.local(value)).all()][:_LISTED]
