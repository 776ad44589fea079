"""Losses that are not finite: such a step ends the job or is skipped, and a message names the ranks and values."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from .all_ranks import of_all_ranks
from .batches import Batch, LocalRows, part_of_batch
from .executor import Executor
from .groups import job_rank
from .plan import Plan, PlanError

LOG = logging.getLogger("shardwright")

OnNan = Literal["raise", "skip", "ignore"]
"""The reaction to a loss that is NaN or infinite."""

SKIPPED = "skipped"
"""The metric of a program that skips such steps: 1 for a skipped step, otherwise 0."""

_LISTED = 3


class NonFiniteError(PlanError):
    """A loss that is NaN or infinite; the message names its source, as far as known."""


def verify_on_nan(on_nan: str) -> None:
    """
    Check the requested reaction to losses that are not finite.

    Raises:
        PlanError: the value is outside `OnNan`.
    """
    if on_nan not in ("raise", "skip", "ignore"):
        raise PlanError(f"on_nan={on_nan!r}: expected 'raise', 'skip' or 'ignore'")


def skips(plans: Sequence[Plan]) -> bool:
    """Whether a program skips steps whose loss or gradients are not finite."""
    return any(output.role == "metric" and output.name == SKIPPED for plan in plans for output in plan.outputs)


@dataclass
class FiniteLosses:
    """
    Checks the loss of every step, which is the same on all ranks, or the program's `skipped` metric.

    On CUDA it checks the loss of the previous step, because the host would wait for the step that it just started.

    `skipped` counts the skipped steps.

    Raises:
        PlanError: steps should be skipped, but the program was planned without skipping.
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
        Check the loss of a step; every rank must call this.

        Raises:
            NonFiniteError: on every rank, if the loss is not finite and such a step should raise.
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
        """Count a skipped step; for the first, rank 0 logs the reason."""
        self.skipped += 1
        if self.skipped > 1:
            return
        source = self._source(batch)
        if job_rank() == 0:
            LOG.warning(
                "step %d was skipped: its loss is %s, and that or a gradient is not finite: %s; further steps of this "
                "kind are skipped and counted without a message",
                number,
                value,
                source,
            )

    def _source(self, batch: Batch | LocalRows) -> str:
        """Describe why the loss of a step is not finite, and the remedy; every rank must call this."""
        everyone = of_all_ranks((socket.gethostname(), self._given(batch), self._held()))
        where = [f"rank {rank} ({host}): {fault}" for rank, (host, fault, _) in enumerate(everyone) if fault]
        if where:
            more = f"; and {len(where) - _LISTED} more ranks" if len(where) > _LISTED else ""
            return f"its batch has numbers that are not finite, {'; '.join(where[:_LISTED])}{more}; mend the data"
        broken = sorted({name for _, _, names in everyone for name in names})
        weights = f" (after it {', '.join(broken[:_LISTED])} are not finite)" if broken else ""
        return (
            f"the batches of all ranks are finite, so the step itself produced it{weights}; lower the learning "
            "rate, clip gradients (clip_norm=), or look at divisions and logarithms in the model"
        )

    def _given(self, batch: Batch | LocalRows) -> str:
        """Return the count of non-finite numbers in the first such item of this rank's batch; otherwise empty."""
        plan, comm = self.executor.plan, self.executor.comm
        for value in plan.inputs:
            if value.role != "batch" or not value.torch_dtype.is_floating_point:
                continue
            try:
                part = part_of_batch(value, batch, comm.mesh, comm.rank)
            except PlanError:
                # This batch has another of the declared shapes.
                continue
            if count := int((~torch.isfinite(part)).sum()):
                return f"{count} in item {value.name!r}"
        return ""

    def _held(self) -> list[str]:
        """Return the names of some of this rank's parameters that are not finite."""
        parameters = [value for value in self.executor.plan.inputs if value.role == "param"]
        return [value.name for value in parameters if not torch.isfinite(self.executor.local(value)).all()][:_LISTED]
