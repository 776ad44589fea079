"""`step.evaluate` and `step.predict`: the forward pass of what is trained, spread as it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from ..lowering.calling import Batch
from ..runtime.batches import LocalRows
from ..runtime.executor import Program, gather
from ..runtime.plan import Plan, PlanError, Result
from .variants import Variants


@dataclass(frozen=True)
class Evaluation:
    """
    What a batch comes to, the same on every rank.

    Args:
        loss: a tensor of no dims.
        metrics: by name, whole.
    """

    loss: torch.Tensor
    metrics: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class RowsOfOutput:
    """
    The part of an output that one rank has.

    Args:
        rows: of the batch; ranks that compute on the same rows have the same ones, and those of an earlier stage none.
        output: as the model returns it, with these rows of each tensor that has rows.
    """

    rows: range
    output: Any


def evaluate(variants: Variants, batch: Batch | LocalRows) -> Evaluation:
    """Loss and metrics of a batch; see `DistributedStep.evaluate`."""
    program, _ = variants.forward("loss", batch)
    outputs = variants.executor.forward(batch, program)
    by_role = list(zip(program.plan.outputs, outputs, strict=True))
    loss = next(tensor for result, tensor in by_role if result.role == "loss")
    return Evaluation(loss, {result.name: tensor for result, tensor in by_role if result.role == "metric"})


def predict(variants: Variants, batch: Batch | LocalRows, part: Literal["whole", "rows"]) -> Any:
    """What the model gives for a batch; see `DistributedStep.predict`."""
    program, form = variants.forward("output", batch)
    assert form is not None, "the program gives what the model returns"
    mine = variants.executor.forward(batch, program)
    made = dict(zip([result.name for result in program.plan.outputs], mine, strict=True))
    owners = {result.name: (plan, result) for plan in program.plans for result in plan.outputs}
    ordered = [owners[str(number)] for number in range(len(owners))]
    if part == "whole":
        return form.filled([_whole(program, *owner, made.get(owner[1].name)) for owner in ordered])
    # What has no rows is made by all ranks together.
    by_rows = [_rows if result.shape else _whole for _, result in ordered]
    found = [take(program, *owner, made.get(owner[1].name)) for take, owner in zip(by_rows, ordered, strict=True)]
    return RowsOfOutput(_common(program, ordered), form.filled(found))


def _whole(program: Program, owner: Plan, result: Result, mine: torch.Tensor | None) -> torch.Tensor:
    """An output, whole on every rank of the job."""
    if mine is not None:
        whole = gather(result, mine, program.comm)
    else:
        whole = torch.empty(result.shape, dtype=result.torch_dtype, device=program.comm.device)
    if len(program.plans) > 1:
        dist.broadcast(whole, owner.ranks[0])
    return whole


def _rows(program: Program, owner: Plan, result: Result, mine: torch.Tensor | None) -> torch.Tensor:
    """The rows of an output that this rank has, whole along its other dims; none where its stage does not make it."""
    if mine is not None:
        return gather(result, mine, program.comm, rows=True)
    return torch.zeros((0, *result.shape[1:]), dtype=result.torch_dtype, device=program.comm.device)


def _common(program: Program, ordered: list[tuple[Plan, Result]]) -> range:
    """The rows that this rank has of every output that has rows."""
    found: set[tuple[int, int]] = set()
    for owner, result in ordered:
        if result.shape:
            is_mine = owner is program.plan
            rows = result.slices(owner.mesh, program.comm.rank)[0] if is_mine else slice(0, 0)
            found.add((rows.start, rows.stop))
    if len(found) > 1:
        raise PlanError(
            "predict(part='rows'): the tensors that the model returns are split differently, or differ in their first "
            "dim; take part='whole'"
        )
    return range(*found.pop()) if found else range(0)
