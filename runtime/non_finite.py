"""Losses that are no numbers: the step that gives one ends the job, and it is said which rank had what of it."""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass
from typing import Literal

import torch

from .agreement import of_all_ranks
from .batches import Batch, LocalRows, part_of_batch
from .executor import Executor
from .plan import PlanError

OnNan = Literal["raise", "ignore"]
"""What becomes of a loss that is nan or infinite."""

_LISTED = 3


class NonFiniteError(PlanError):
    """A loss that is nan or infinite; the message says where it comes from, as far as that is known."""


def verify_on_nan(on_nan: str) -> None:
    """
    Check what is to become of a loss that is no number.

    Raises:
        PlanError: it is neither ``raise`` nor ``ignore``.
    """
    if on_nan == "skip":
        raise PlanError(
            "on_nan='skip' is not supported: an update works in place, before the loss of its step is known; use "
            "'raise' and go on from the last checkpoint without that batch, or 'ignore'"
        )
    if on_nan not in ("raise", "ignore"):
        raise PlanError(f"on_nan={on_nan!r}: expected 'raise' or 'ignore'")


@dataclass
class FiniteLosses:
    """
    Looks at the loss of every step, which is the same on all ranks.

    On CUDA it is that of the step before, for the host would wait for the one that it has just begun.
    """

    executor: Executor
    on_nan: OnNan = "raise"
    _before: tuple[int, torch.Tensor, Batch | LocalRows] | None = None

    def see(self, number: int, loss: torch.Tensor, batch: Batch | LocalRows) -> None:
        """
        Look at the loss of a step; every rank must call this.

        Raises:
            NonFiniteError: on every rank, if it is not finite.
        """
        if self.on_nan == "ignore":
            return
        ready = (number, loss, batch)
        if loss.device.type == "cuda":
            ready, self._before = self._before, ready
        if ready is None or math.isfinite(value := ready[1].item()):
            return
        raise NonFiniteError(self._told(ready[0], value, ready[2]))

    def _told(self, number: int, value: float, batch: Batch | LocalRows) -> str:
        everyone = of_all_ranks((socket.gethostname(), self._given(batch), self._held()))
        where = [f"rank {rank} ({host}): {given}" for rank, (host, given, _) in enumerate(everyone) if given]
        if where:
            more = f"; and {len(where) - _LISTED} more ranks" if len(where) > _LISTED else ""
            source = f"it was given numbers that are not finite, {'; '.join(where[:_LISTED])}{more}; mend the data"
        else:
            broken = sorted({name for _, _, names in everyone for name in names})
            weights = f" (after it {', '.join(broken[:_LISTED])} are not finite)" if broken else ""
            source = (
                f"all that the ranks were given is finite, so the step itself made it{weights}; lower the learning "
                "rate, clip gradients (clip_norm=), or look at divisions and logarithms in the model"
            )
        mend = "and go on from the last checkpoint, or give on_nan='ignore'"
        return f"the loss of step {number} is {value}: {source}, {mend}"

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
        return [value.name for value in parameters if not _finite(self.executor.local(value))][:_LISTED]


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
