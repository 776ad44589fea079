"""`step.evaluate` and `step.predict`: the forward pass of the model, with the shardings of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from ..lowering.capture.calling import Batch
from ..runtime.batches import LocalRows
from ..runtime.executor import RankProgram, gather
from ..runtime.faults import ACTIVITY
from ..runtime.plan import Plan, PlanError, Result
from .variants import Variants


@dataclass(frozen=True)
class Evaluation:
    """
    The loss and metrics of a batch, the same on every rank.

    Args:
        metrics: the metrics by name, the same on every rank.
    """

    loss: torch.Tensor
    metrics: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class RowsOfOutput:
    """
    The part of an output that one rank has.

    Args:
        rows: the rows of the batch that this rank has. Ranks that compute on the same rows have equal ranges; ranks of
            earlier pipeline stages have an empty range.
        output: the output in the model's structure, with only these rows of each tensor that has rows.
    """

    rows: range
    output: Any


def evaluate(variants: Variants, batch: Batch | LocalRows) -> Evaluation:
    """Return the loss and metrics of a batch; see `DistributedStep.evaluate`."""
    program, _ = variants.forward("loss", batch)
    outputs = variants.executor.forward(batch, program)
    by_role = list(zip(program.plan.outputs, outputs, strict=True))
    loss = next(tensor for result, tensor in by_role if result.role == "loss")
    return Evaluation(loss, {result.name: tensor for result, tensor in by_role if result.role == "metric"})


def predict(variants: Variants, batch: Batch | LocalRows, part: Literal["whole", "rows"]) -> Any:
    """Return the model's output for a batch; see `DistributedStep.predict`."""
    program, form = variants.forward("output", batch)
    assert form is not None, "the program gives what the model returns"
    local = variants.executor.forward(batch, program)
    by_name = dict(zip([result.name for result in program.plan.outputs], local, strict=True))
    owners = {result.name: (plan, result) for plan in program.plans for result in plan.outputs}
    tensors = [_ModelOutput(program, *owners[str(number)], by_name.get(str(number))) for number in range(len(owners))]
    if part == "whole":
        return form.filled([each.whole() for each in tensors])
    with_rows = [each for each in tensors if each.result.shape]
    if len({each.result.shape[0] for each in with_rows}) != 1:
        details = ", ".join(str(list(each.result.shape)) for each in tensors)
        raise PlanError(
            f"predict(part='rows'): the model returns tensors of {details}, which do not have the same number of rows"
        )
    rows = with_rows[0].rows
    return RowsOfOutput(rows, form.filled([each.part(with_rows[0]) for each in tensors]))


@dataclass(frozen=True)
class _ModelOutput:
    """
    One tensor that the model returns.

    Args:
        owner: the plan of the stage that computes the tensor.
        mine: this rank's part of it, or None if another stage computes it.
    """

    program: RankProgram
    owner: Plan
    result: Result
    mine: torch.Tensor | None

    @property
    def rows(self) -> range:
        if self.owner is not self.program.plan:
            return range(0)
        rows = self.result.slices(self.owner.mesh, self.program.comm.rank)[0]
        return range(rows.start, rows.stop)

    def whole(self) -> torch.Tensor:
        """Return the full tensor, on every rank of the job; every rank must call this."""
        if self.mine is not None:
            whole = gather(self.result, self.mine, self.program.comm)
        else:
            whole = torch.empty(self.result.shape, dtype=self.result.torch_dtype, device=self.program.comm.device)
        if len(self.program.plans) > 1:
            ACTIVITY.wait(f"output {self.result.name!r}", lambda: dist.broadcast(whole, self.owner.ranks[0]))
        return whole

    def part(self, like: _ModelOutput) -> torch.Tensor:
        """
        Return the rows that this rank has of output `like`, unsplit along all other dims, or the full tensor without
        rows.

        Every rank must call this.
        """
        if not self.result.shape:
            return self.whole()
        if self.owner is not like.owner or self.result.spread.dims[0] != like.result.spread.dims[0]:
            return self.whole()[like.rows.start : like.rows.stop]
        if self.mine is not None:
            return gather(self.result, self.mine, self.program.comm, rows=True)
        shape = (0, *self.result.shape[1:])
        return torch.zeros(shape, dtype=self.result.torch_dtype, device=self.program.comm.device)
