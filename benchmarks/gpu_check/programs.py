"""The kinds of plans that the stages run, for any number of ranks, and their programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from shardwright.api.training_step import TrainingStep
from shardwright.ir.mesh import Mesh
from shardwright.lowering.capture.calling import Batch, batch_items
from shardwright.lowering.codegen.load_program import load_text
from shardwright.models.registry import MODELS
from shardwright.runtime.executor import Executor
from shardwright.runtime.stages import Stage

from .job import Job

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from split_cluster import hosts_cluster, split_cluster

__all__ = ["FAMILIES", "Form", "forms", "hosts_cluster", "split_cluster"]

TINY = "-tiny"
FAMILIES = tuple(name.removesuffix(TINY) for name in MODELS if name.endswith(TINY))
"""Families of shipped models: names of their smallest models without `TINY`."""

DUPLEX = "prepare,search-strategy{algorithm=fixed pins=tp},program{mode=duplex parts=2},finish"
PARTS = "prepare,search-strategy,program{parts=2},finish"
HYBRID = '[[pin]]\npreset = "dp"\naxes = ["node"]\n[[pin]]\npreset = "tp"\naxes = ["gpu"]\n'
"""Data-parallel over the first axis of a grid, tensor-parallel over the second."""


@dataclass(frozen=True)
class Form:
    """A kind of plan, by values of `PlanOptions` and the share of activations that is kept for backward."""

    mesh: Mesh
    pins: str | None = None
    pipeline: str | None = None
    ratios: str = "auto"
    keep: float | None = None


def forms(job: Job) -> dict[str, Form]:
    """Return the kinds of plans that the ranks of a job can run, by name."""
    line, grid = job.mesh(), job.grid()
    kinds = {
        "dp": Form(line, "dp"),
        "zero3": Form(line, "zero3"),
        "tp": Form(line, "tp"),
        "searched": Form(line),
        "micro-batches": Form(line, pipeline=PARTS),
        "recompute": Form(line, "dp", keep=0.0),
        "duplex": Form(line, pipeline=DUPLEX),
    }
    if job.world > 1:
        kinds["uneven"] = Form(line, ratios=_shares(job.world))
        kinds["uneven dp"] = Form(line, "dp", ratios=_shares(job.world))
        for schedule in ("1f1b", "eager-1f1b", "gpipe"):
            kinds[f"2 stages, {schedule}"] = Form(line, pipeline=stages(_divided(job.world, 2), schedule))
    if job.world > 3:
        for schedule in ("1f1b", "gpipe"):
            kinds[f"4 stages, {schedule}"] = Form(line, pipeline=stages(_divided(job.world, 4), schedule))
    if grid is not None:
        kinds |= {"grid, searched": Form(grid), "grid, dp x tp": Form(grid, HYBRID)}
    return kinds


def stages(ranks: Sequence[int], schedule: str) -> str:
    """Return the passes of a pipeline with the given ranks per stage, and four micro-batches."""
    partition = f'partition-stages{{stages={len(ranks)} ranks="{",".join(map(str, ranks))}"}}'
    return f"prepare,{partition},search-strategy,program{{mode=pipeline parts=4 schedule={schedule}}},finish"


def _divided(ranks: int, parts: int) -> list[int]:
    """Divide ranks into about equal parts, the larger parts last."""
    return [(part + 1) * ranks // parts - part * ranks // parts for part in range(parts)]


def _shares(ranks: int) -> str:
    """Return shares that decrease from rank to rank, in hundredths."""
    whole = ranks * (ranks + 1) // 2
    shares = [100 * (ranks - rank) // whole for rank in range(1, ranks)]
    return ",".join(str(share / 100) for share in (100 - sum(shares), *shares))


def tiny_step(family: str, ranks: int) -> TrainingStep:
    """Return the smallest step of a family, with one batch row per rank and at least eight rows."""
    return MODELS[f"{family}{TINY}"](batch=max(8, ranks))  # pyright: ignore[reportCallIssue]


def executor(job: Job, program: str, step: TrainingStep, name: str, *, checked: bool = False) -> Executor:
    """Return this rank's executor of a program, with the weights of seed 0."""
    loaded = [Stage(*stage) for stage in load_text(program, f"{name}.py")]
    runner = Executor(loaded, job.connections.connect(loaded, checked=checked))
    runner.initialize(step.model, 0)
    return runner


def on_device(job: Job, batch: Batch) -> dict[str, object]:
    """Copy the items of a batch to this rank's device, where timed steps read them."""
    items = batch_items(batch)
    return {name: item.to(job.device) if isinstance(item, torch.Tensor) else item for name, item in items.items()}
