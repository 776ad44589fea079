"""The kinds of plans that the stages run, for any number of ranks, their programs, and the sizes of measured steps."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _sides import by_round

from shardwright.api.calibration.op_samples import rehearsal_of, samples_of_plan
from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.submesh import on_mesh
from shardwright.lowering.capture.calling import Batch, batch_items
from shardwright.lowering.codegen.load_program import load_text
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.mlp import mlp_step
from shardwright.models.registry import MODELS
from shardwright.models.vgg import VGG13, VGGConfig, vgg_step
from shardwright.runtime.executor import Executor
from shardwright.runtime.profile.rehearsal import Rehearsal
from shardwright.runtime.profile.samples import OpSample
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


@dataclass(frozen=True)
class MeasuredPlan:
    """A plan as all ranks receive it: program, `plan.json`, and ops to time; or the reason why it failed."""

    program: str = ""
    report: Mapping[str, Any] | None = None
    samples: tuple[OpSample, ...] = ()
    rehearsal: Rehearsal | None = None
    refusal: str = ""


@dataclass(frozen=True)
class PlanCase:
    """A step of `sizes`, with a kind of plan of `programs`."""

    step: str
    form: str

    def __str__(self) -> str:
        return f"{self.step}, {self.form}"


def known_cases(job: Job, cases: Sequence[PlanCase]) -> dict[str, PlanCase]:
    """Return the cases that have enough ranks in this job, by name."""
    return {str(case): case for case in cases if case.form in forms(job)}


def make_plans(job: Job, stage: str, cases: Sequence[PlanCase], cluster: Cluster) -> list[MeasuredPlan]:
    """Plan the cases for a cluster, each on one rank, and return all plans on all ranks."""
    kinds, folder = forms(job), job.settings.out / "programs" / stage

    def planned(case: PlanCase) -> MeasuredPlan:
        form, name = kinds[case.form], str(case)
        options = PlanOptions(pins=form.pins, pipeline=form.pipeline, ratios=form.ratios, keep_activations=form.keep)
        on = cluster if form.mesh == cluster.mesh else on_mesh(cluster, form.mesh)
        try:
            plan = compile_step(sized_step(job, case.step), on, options, name=name.replace(", ", "_"))
        # Any error is a failure of this plan only, and is reported with it.
        except Exception as error:
            return MeasuredPlan(refusal=f"{type(error).__name__}: {error}")
        plan.save(folder / name)
        return MeasuredPlan(plan.program, plan.report, samples_of_plan(plan.module), rehearsal_of(plan.module, name))

    return job.divide([partial(planned, case) for case in cases])


_ON_GPUS = GPT2Config(layers=8, width=1024, heads=16, vocabulary=32768, positions=512)
_ON_CPUS = GPT2Config(layers=2, width=128, heads=4, vocabulary=512, positions=64)
"""The numbers of heads and the widths are multiples of 2, 4 and 8, as torch's tensor parallelism requires."""


def sized_step(job: Job, name: str) -> TrainingStep:
    """
    Return ``gpt2``, ``gpt2 bf16`` (in mixed precision), ``mlp`` or ``vgg`` in the job's size: at least eight sequences
    per GPU, or eight in total on CPUs.
    """
    family, _, mixed = name.partition(" ")
    gpus = job.world if job.is_cuda else 0
    if family == "gpt2":
        step = gpt2_step(_ON_GPUS if gpus else _ON_CPUS, batch=8 * max(gpus, 1), length=512 if gpus else 64)
        return replace(step, precision="bf16-mixed") if mixed else step
    if family == "mlp":
        sizes = (4096, 8192, 8192, 8192, 1024) if gpus else (256, 512, 512, 64)
        return mlp_step(sizes, batch=1024 * gpus if gpus else 512)
    config = VGGConfig(convolutions=VGG13, image=64 if gpus else 32, classes=10)
    config = config if gpus else replace(config, widths=(8, 16, 32, 32, 32), hidden=256)
    return vgg_step(config, batch=32 * max(gpus, 1))


BLOCK_SECONDS = 0.03
"""Shortest seconds of a block of steps, since ranks leave a barrier up to a millisecond apart."""

WARM_STEPS = 3


def seconds_in_turn(job: Job, sides: Sequence[Callable[[], object]], rounds: int) -> list[tuple[float, ...]]:
    """
    Return the seconds of a step of each side on the slowest rank, by round; sides take turns in random order.

    Every rank calls this with equal numbers of sides and rounds.
    """
    blocks: list[Callable[[], float]] = []
    for side in sides:
        for _ in range(WARM_STEPS):
            side()
        steps = max(1, math.ceil(BLOCK_SECONDS / job.clock.slowest(_timed(job, side, 2))))
        blocks.append(partial(_timed, job, side, steps))
    by_rank = job.clock.everyone(by_round(blocks, rounds))
    return [tuple(max(column) for column in zip(*rows, strict=True)) for rows in zip(*by_rank, strict=True)]


def _timed(job: Job, side: Callable[[], object], count: int) -> float:
    """Return this rank's seconds of a step."""
    job.clock.wait_for_all()
    return job.clock.calls(side, count)
