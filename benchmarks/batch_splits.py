"""
How many of 150 random models can be accumulated, and which of them gather activations under `dp`.

    python benchmarks/batch_splits.py [--count N] [--first N] [--check]

Each model (`_random_attention.py`: the spellings of attention that are in use, and batches in other places than first)
is imported, planned as `dp` on two devices, and its batch split into two parts that are accumulated; once as it is by
default and once without `make-batch-major`. A model that some block needs the whole batch of, a batch norm say, has to
be refused by the name of that block: another refusal, or a refusal elsewhere, is an error of ours. With `--check` the
accumulated program is interpreted in float64 for two steps and compared with one device.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import torch
from _random_attention import WHOLE, random_attention
from _report import parsed, publish
from split_cluster import split_cluster
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.check import check_interpreted
from shardwright.api.compile import import_training_step
from shardwright.dialects.compute import ComputeOp, shape_of
from shardwright.dialects.spmd import CollectiveOp
from shardwright.dialects.step import BACKWARD
from shardwright.ir.mesh import Mesh
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.errors import PassError, place_in_model
from shardwright.passes.pipeline import Pipeline, run_pipeline

MESH = Mesh.of(gpu=2)
WITHOUT = Pipeline.of(each for each in Pipeline.parse("prepare") if each.name != "make-batch-major")
DATA_PARALLEL = "search-strategy{algorithm=fixed pins=dp}"


@dataclass(frozen=True)
class Outcome:
    """
    What became of one model.

    Args:
        needs_whole: whether one of its blocks needs the whole batch.
        gathers, gathered: how many collectives of activations `dp` has; the second without the pass.
        refusal, refused: why its batch cannot be split, empty where it can; the second without the pass.
        block: the block of the model that the refusal names.
        differs: in what the accumulated program is not equal to one device; empty where it is, or was not checked.
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
        """Whether a refusal is not for what the model computes."""
        return bool(self.refusal) and not (self.needs_whole and self.block)


def outcome_of(number: int, *, check: bool = False) -> Outcome:
    """Plan the model of a number in both ways."""
    name, kinds, make = random_attention(number)
    imported = import_training_step(make())
    add_cluster(imported, split_cluster(MESH))
    found: list[tuple[int, PassError | None]] = []
    for begin in (Pipeline.parse("prepare"), WITHOUT):
        module = imported.clone()
        run_pipeline(Context(), module, Pipeline.of(begin, DATA_PARALLEL), verify_each=False)
        found.append((_activations_sent(module.clone()), _refusal(module)))
    (gathers, refusal), (gathered, refused) = found
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
    """How many collectives of forward send more than a number."""
    run_pipeline(Context(), module, "communicate", verify_each=False)
    sent = (op for op in module.walk() if isinstance(op, CollectiveOp) and not op.KIND.is_local)
    made = (op.operand for op in sent if shape_of(op.operand))
    return sum(isinstance(value.owner, ComputeOp) and BACKWARD not in value.owner.attributes for value in made)


def _refusal(module: ModuleOp) -> PassError | None:
    """Why the batch cannot be split; None where it can."""
    try:
        run_pipeline(Context(), module, "program{parts=2}", verify_each=False)
    except PassError as error:
        return error
    return None


def row_of(outcomes: Iterable[Outcome], block: str) -> dict[str, str | int]:
    """The counts of the models that have a block of one kind, or of all."""
    listed = [each for each in outcomes if block in ("all", *each.name.partition(": ")[2].split(", "))]
    names = ("accumulated", "need the whole batch", "refused otherwise", "before", "gather", "gathered before")
    counts = dict.fromkeys((*names, "unequal"), 0)
    for each in listed:
        counts["accumulated"] += not each.refusal
        counts["before"] += not each.refused
        counts["need the whole batch"] += bool(each.refusal) and not each.is_ours
        counts["refused otherwise"] += each.is_ours
        counts["gather"] += each.gathers > 0
        counts["gathered before"] += each.gathered > 0
        counts["unequal"] += bool(each.differs)
    return {"block": block, "models": len(listed), **counts}


def main() -> None:
    """Run the study; refusals and differences are printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150, help="how many models")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--check", action="store_true", help="interpret what is accumulated, and compare")
    options = parsed(parser, count=3)
    warnings.simplefilter("ignore")
    logging.getLogger("shardwright").setLevel(logging.ERROR)
    outcomes: list[Outcome] = []
    for number in range(options.first, options.first + options.count):
        outcomes.append(found := outcome_of(number, check=options.check))
        if found.refusal or found.differs:
            print(f"{found.name}: {found.refusal or found.differs}", flush=True)
    kinds = sorted({kind for each in outcomes for kind in each.name.partition(": ")[2].split(", ")})
    rows = [row_of(outcomes, kind) for kind in (*kinds, "all")]
    arguments = f" --count {options.count}" + (f" --first {options.first}" if options.first else "")
    check = " --check" if options.check else ""
    publish("batch_splits", rows, command=f"python benchmarks/batch_splits.py{arguments}{check}")


if __name__ == "__main__":
    main()
