"""
Count how many of 150 random models support gradient accumulation, and how many gather activations under `dp`.

    python benchmarks/batch_splits.py [--count N] [--first N] [--check]

Each model (`_random_attention.py`: common ways to write attention, with the batch dim in various places) is imported
and planned as `dp` on two devices, and its batch is split into two parts that are accumulated. This is done with the
default passes and without `make-batch-major`. A model with a block that needs the whole batch, for instance a
batch-norm, must be refused by the name of that block; any other refusal is an error of ours. `--check` interprets the
accumulated program in float64 for two steps and compares it with one device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from _random_attention import WHOLE, random_attention
from _report import arguments, parsed, publish, quiet
from _steps import after, planned
from split_cluster import split_cluster
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.check import check_interpreted
from shardwright.api.compile import import_training_step
from shardwright.dialects.compute import ComputeOp, shape_of
from shardwright.dialects.spmd import CollectiveOp
from shardwright.dialects.step import BACKWARD
from shardwright.ir.mesh import Mesh
from shardwright.passes.errors import PassError, place_in_model
from shardwright.passes.pipeline import Pipeline

MESH = Mesh.of(gpu=2)
WITHOUT = Pipeline.of(each for each in Pipeline.parse("prepare") if each.name != "make-batch-major")
DATA_PARALLEL = "search-strategy{algorithm=fixed pins=dp}"


@dataclass(frozen=True)
class Outcome:
    """
    The result of one model.

    Args:
        gathers, gathered: number of collectives of activations under `dp`, with and without `make-batch-major`.
        refusal, refused: reason why the batch cannot be split, or "", with and without `make-batch-major`.
        block: block of the model that the refusal names.
        differs: difference between the accumulated program and one device, or "".
    """

    name: str
    needs_whole: bool
    gathers: int
    gathered: int
    refusal: str
    refused: str
    block: str
    differs: str = ""

    @property
    def is_ours(self) -> bool:
        """Return whether the refusal is an error of ours, since no block that it names needs the whole batch."""
        return bool(self.refusal) and not (self.needs_whole and self.block)


def outcome_of(number: int, *, check: bool = False) -> Outcome:
    """Plan the model of a number with and without `make-batch-major`, and return the result."""
    name, kinds, make = random_attention(number)
    imported = import_training_step(make())
    results: list[tuple[int, PassError | None]] = []
    for begin in (Pipeline.parse("prepare"), WITHOUT):
        module, refusal = planned(imported, split_cluster(MESH), *begin, DATA_PARALLEL), None
        sent = _activations_sent(module.clone())
        try:
            after(module, "program{parts=2}")
        except PassError as error:
            refusal = error
        results.append((sent, refusal))
    (gathers, refusal), (gathered, refused) = results
    differs = ""
    if check and refusal is None:
        pipeline = f"prepare,{DATA_PARALLEL},program{{parts=2}},finish"
        case = CheckCase(make, MESH, dtype=torch.float64, steps=2, cluster=split_cluster(MESH), pipeline=pipeline)
        result = check_interpreted(case)
        differs = "" if result.passed else str(result)
    whole = [i for i, kind in enumerate(kinds) if kind in WHOLE]
    place = place_in_model(refusal.op.location) if refusal is not None and refusal.op is not None else ""
    block = next((f"blocks.{i}" for i in whole if f'"blocks.{i}' in place), "")
    return Outcome(name, bool(whole), gathers, gathered, str(refusal or ""), str(refused or ""), block, differs)


def _activations_sent(module: ModuleOp) -> int:
    """Return the number of forward's collectives that send more than a scalar."""
    after(module, "communicate")
    sent = (op for op in module.walk() if isinstance(op, CollectiveOp) and not op.KIND.is_local)
    operands = (op.operand for op in sent if shape_of(op.operand))
    return sum(isinstance(value.owner, ComputeOp) and BACKWARD not in value.owner.attributes for value in operands)


def row_of(outcomes: Iterable[Outcome], block: str) -> dict[str, str | int]:
    """Count the results of the models that have a block of one kind, or of all models."""
    listed = [outcome for outcome in outcomes if block in ("all", *outcome.name.partition(": ")[2].split(", "))]
    names = ("accumulated", "need the whole batch", "refused otherwise", "before", "gather", "gathered before")
    counts = dict.fromkeys((*names, "unequal"), 0)
    for outcome in listed:
        counts["accumulated"] += not outcome.refusal
        counts["before"] += not outcome.refused
        counts["need the whole batch"] += bool(outcome.refusal) and not outcome.is_ours
        counts["refused otherwise"] += outcome.is_ours
        counts["gather"] += outcome.gathers > 0
        counts["gathered before"] += outcome.gathered > 0
        counts["unequal"] += bool(outcome.differs)
    return {"block": block, "models": len(listed), **counts}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=150, help="number of models")
    parser.add_argument("--first", type=int, default=0, help="number of the first model")
    parser.add_argument("--check", action="store_true", help="compare accumulated programs to one device")
    options = parsed(parser, count=3)
    quiet()
    outcomes: list[Outcome] = []
    for number in range(options.first, options.first + options.count):
        outcomes.append(outcome := outcome_of(number, check=options.check))
        if outcome.refusal or outcome.differs:
            print(f"{outcome.name}: {outcome.refusal or outcome.differs}", flush=True)
    kinds = sorted({kind for past in outcomes for kind in past.name.partition(": ")[2].split(", ")})
    rows = [row_of(outcomes, kind) for kind in (*kinds, "all")]
    publish("batch_splits", rows)


if __name__ == "__main__":
    main()
