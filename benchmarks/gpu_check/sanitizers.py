"""Run programs under checks that are too slow for a job: order of collectives, races of streams, memory accesses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.ranks import program_of
from shardwright.lowering.capture.calling import batch_items
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.requests import SequenceError

from .job import Job
from .programs import Form, executor, forms, split_cluster, tiny_step
from .results import Figure, Row

_KINDS = ("dp", "zero3", "tp", "searched", "uneven", "recompute", "duplex", "grid, searched")
_STAGES = ("2 stages, 1f1b", "2 stages, gpipe", "4 stages, 1f1b")
PLANS = (*(("gpt2", kind) for kind in (*_KINDS, *_STAGES)), ("vgg13", "zero3"), ("mixtral", "searched"))
QUICK = (("gpt2", "zero3"), ("gpt2", "2 stages, 1f1b"))
FEW = (("mlp", "dp"), ("gpt2", "searched"))
"""Families with kinds of plans: all, for a quick run (QUICK), and for a tool that is a hundred times slower (FEW)."""


@dataclass
class Programs:
    """
    Runs programs for some steps, and checks that the losses are finite.

    Args:
        plans: families with kinds of plans; kinds that need more ranks than the job has are skipped.
        checked: whether every collective is compared over its ranks before it starts.
        planted: name of a case that plants a fault, and the function that runs it.
    """

    job: Job
    plans: Sequence[tuple[str, str]]
    steps: int
    checked: bool = False
    planted: tuple[str, Callable[[Job, str], Row]] | None = None

    def __post_init__(self) -> None:
        kinds = forms(self.job)
        self._by_name = {f"{family}, {kind}": (family, kinds[kind]) for family, kind in self.plans if kind in kinds}
        self.cases: Sequence[str] = [*([self.planted[0]] if self.planted else []), *self._by_name]
        self._programs: dict[str, tuple[bool, str]] = {}

    def prepare(self, cases: Sequence[str]) -> None:
        own = [case for case in cases if case in self._by_name]
        programs = self.job.divide([partial(self._program, *self._by_name[case]) for case in own])
        self._programs = dict(zip(own, programs, strict=True))

    def _program(self, family: str, form: Form) -> tuple[bool, str]:
        step = partial(tiny_step, family, self.job.world)
        options = {"pipeline": form.pipeline, "ratios": form.ratios, "keep_activations": form.keep}
        return program_of(CheckCase(step, form.mesh, form.pins, cluster=split_cluster(form.mesh), **options))

    def run(self, case: str) -> Row:
        """Plant the fault, or train for some steps."""
        if self.planted is not None and case == self.planted[0]:
            return self.planted[1](self.job, case)
        is_planned, text = self._programs[case]
        if not is_planned:
            return Row(case, "failed", {}, f"no plan: {text}")
        step = tiny_step(self._by_name[case][0], self.job.world)
        runner = executor(self.job, text, step, case, checked=self.checked)
        losses = [runner.step(batch_items(step.batch)).item() for _ in range(self.steps)]
        figures: dict[str, Figure] = {"steps": self.steps}
        if self.checked:
            figures["collectives compared, on all ranks"] = sum(self.job.clock.everyone(_compared(runner.comm)))
        if not all(map(math.isfinite, losses)):
            return Row(case, "failed", figures, f"losses {losses}: expected finite numbers")
        return Row(case, "passed", figures)


def _compared(comm: Communicator) -> int:
    """Return the number of this rank's collectives that were compared."""
    return comm._sequence._count if comm._sequence is not None else 0


def _mismatch(job: Job, case: str) -> Row:
    """Start collectives of equal bytes but different shapes on different ranks; the check must stop them."""
    if job.world == 1:
        return Row(case, "skipped", {}, "needs two ranks")
    mesh = job.mesh()
    comm = Communicator(mesh, [mesh.names], job.device, handles=job.connections.handles, checked=True)
    shape = (4, 1) if job.rank == 0 else (2, 2)
    try:
        comm.all_reduce(torch.zeros(shape, device=job.device), mesh.names)
    except SequenceError as error:
        return Row(case, "passed", {}, str(error).partition(";")[0])
    return Row(case, "failed", {}, "rank 0 reduced another shape than the other ranks, and no error was raised")


def _race(job: Job, case: str) -> Row:
    """Write a tensor from two streams without synchronization; the sanitizer must report it."""
    from torch.cuda._sanitizer import CUDASanitizerErrors

    tensor = torch.rand(4, 2, device=job.device)
    try:
        with torch.cuda.stream(torch.cuda.Stream(job.device)):
            torch.mul(tensor, 5, out=tensor)
    except CUDASanitizerErrors:
        return Row(case, "passed", {}, "two streams that write one tensor")
    return Row(case, "failed", {}, "two streams wrote one tensor and no error was raised: the sanitizer is off")


def sequence(job: Job) -> Programs:
    """Return the work of the stage `sequence`."""
    plans = QUICK if job.settings.quick else PLANS
    return Programs(job, plans, steps=2, checked=True, planted=("ranks that differ are noticed", _mismatch))


def streams(job: Job) -> Programs:
    """Return the work of the stage `streams`, which runs under torch's sanitizer."""
    plans = QUICK if job.settings.quick else PLANS
    return Programs(job, plans, steps=2, planted=("a race is noticed", _race))


def memcheck(job: Job) -> Programs:
    """Return the work of the stage `memcheck`, which runs under compute-sanitizer."""
    return Programs(job, FEW[:1] if job.settings.quick else FEW, steps=1)
