"""Comparison of the best plans of several kinds by running them, because predictions have errors."""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from ..ir.cluster import Cluster
from ..lowering.codegen.load_program import load_text
from ..passes.errors import PassError
from ..passes.planning.records import CandidateRecord
from ..runtime.all_ranks import of_all_ranks
from ..runtime.batches import Batch, items_of
from ..runtime.executor import Executor
from ..runtime.faults import ACTIVITY
from ..runtime.launch import load_step
from ..runtime.spawn import run_ranks
from ..runtime.stages import Stage, connect
from .compile import CompiledStep, Observer, PlanOptions, imported_for, lower
from .plan_report import MeasuredReport, PlanReport
from .training_step import TrainingStep

MOST = 4
"""The default number of plans to run."""

TURN_SECONDS = 0.5
"""The least duration of a timed turn, in seconds; the plans take turns, and each has `TURNS` turns."""

TURNS = 2
_PATIENCE = 1800.0
"""Timeout in seconds of the processes on this machine that measure plans."""

WARM_STEPS, LEAST_STEPS = 2, 3


def compile_finalists(
    step: TrainingStep,
    cluster: Cluster,
    options: PlanOptions,
    most: int,
    *,
    name: str = "step",
    step_spec: str | None = None,
    observe: Observer = lambda _: None,
) -> list[CompiledStep]:
    """
    Return the plan that `compile_step` finds, followed by the plans of other kinds with the fastest predictions.

    Data parallelism is always among the others.

    Raises:
        CaptureError, PassError, PipelineError, PinError: as in `compile_step`.
    """
    module, seconds = imported_for(step, cluster, options, observe)

    def made(asked: PlanOptions) -> CompiledStep:
        return lower(
            module.clone(), cluster, asked, name=name, step_spec=step_spec, seconds=dict(seconds), observe=observe
        )

    plans = [made(options)]
    for record in _most_worthy(plans[0].report["runners_up"], most - 1):
        # A slower candidate may turn out not to fit.
        with suppress(PassError):
            plans.append(made(replace(options, candidate=json.dumps(record), adapt=False, budget=None)))
    return plans


def _most_worthy(records: Sequence[CandidateRecord], most: int) -> list[CandidateRecord]:
    """Return the first records, with data parallelism as the last one if it is not among them."""
    selected = list(records[: max(most, 0)])
    whole = (each for each in records if each["mode"] == "whole")
    plain = next((each for each in whole if [pin.get("preset") for pin in each["choice"]["pins"]] == ["dp"]), None)
    return [*selected[: most - 1], plain] if selected and plain is not None and plain not in selected else selected


def step_seconds(
    programs: Sequence[str],
    model: nn.Module | Callable[[], nn.Module],
    batch: Batch,
    device: torch.device,
    seed: int | None = 0,
) -> list[float]:
    """
    Return the seconds of a step of each program on this job; every rank must call this, and gets the same result.

    Programs take turns, and only one at a time holds memory. The fastest turn of each counts, since other load on the
    machine can only make steps slower.
    """
    items = items_of(batch)
    loaded = [[Stage(*each) for each in load_text(text, "<a finalist>")] for text in programs]
    connected = [connect(stages, device) for stages in loaded]
    turns: list[list[float]] = [[] for _ in programs]
    for _ in range(TURNS):
        for stages, comm, seconds in zip(loaded, connected, turns, strict=True):
            executor = Executor(stages, comm)
            executor.initialize(model, seed)
            executor.step(items)
            once = _timed(executor, items, device, WARM_STEPS)
            count = max(LEAST_STEPS, math.ceil(TURN_SECONDS / once))
            seconds.append(_timed(executor, items, device, count))
            del executor
            gc.collect()
    return [min(seconds) for seconds in turns]


def _timed(executor: Executor, items: Mapping[str, object], device: torch.device, count: int) -> float:
    """Return the mean seconds per step over `count` steps, on the slowest rank."""
    if dist.is_initialized():
        ACTIVITY.wait("the comparison of plans", dist.barrier)
    begun = time.perf_counter()
    for _ in range(count):
        executor.step(items)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max(of_all_ranks((time.perf_counter() - begun) / count))


def fastest(reports: Sequence[PlanReport], seconds: Sequence[float]) -> tuple[int, PlanReport]:
    """Return the index of the plan with the shortest step, and its report with the measured times of all plans."""
    measured: list[MeasuredReport] = [
        {"plan": report["chosen"], "predicted_step_s": report["predicted_step_s"], "measured_step_s": spent}
        for report, spent in zip(reports, seconds, strict=True)
    ]
    best = min(range(len(reports)), key=lambda index: seconds[index])
    report: PlanReport = {**reports[best], "measured": measured}
    if report["chosen"] in [each["name"] for each in reports[0]["candidates"]]:
        # Only the first plan was searched for; the others were rebuilt, so their reports lack the other candidates.
        report["candidates"] = reports[0]["candidates"]
        report["legend"] = reports[0].get("legend", {})
    return best, report


def measured_here(finalists: Sequence[CompiledStep], spec: str) -> CompiledStep:
    """
    Return the finalist with the fastest step, measured on processes of this machine, one for each rank.

    Args:
        spec: the step's name, which each process loads.

    Raises:
        RankError: a process failed.
    """
    programs, ranks = [each.program for each in finalists], finalists[0].report["ranks"]
    seconds, *_ = run_ranks(_seconds_of, ranks, programs, spec, timeout=_PATIENCE)
    best, report = fastest([each.report for each in finalists], seconds)
    return replace(finalists[best], report=report)


def _seconds_of(programs: Sequence[str], spec: str) -> list[float]:
    step = load_step(spec)
    return step_seconds(programs, step.model, step.batch, torch.device("cpu"))
