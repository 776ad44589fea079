"""Compare programs with single-device PyTorch: loss, gradients, parameters and states, over different batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from shardwright.api.checking.cases import SEED, CheckCase
from shardwright.api.checking.check import result_of
from shardwright.api.checking.comparison import Worst, largest, measure
from shardwright.api.checking.ranks import compare_case, program_of
from shardwright.api.checking.reference import EagerRun
from shardwright.api.training_step import TrainingStep
from shardwright.lowering.codegen.load_program import load_text
from shardwright.runtime.executor import Executor
from shardwright.runtime.stages import Stage

from .job import Job
from .programs import FAMILIES, Form, forms, hosts_cluster, split_cluster, tiny_step
from .results import Row

MIXED = "bf16"
SMOOTH = ("gpt2", "bert", "vit", "llama")
"""
Families that are compared in float32. With ReLUs, max-pools and routers a rounding difference may take another branch,
so other families are compared in float64.
"""

TOLERANCES = {"cpu": {torch.float32: 1e-5, torch.float64: 1e-8}, "cuda": {torch.float32: 1e-4, torch.float64: 1e-8}}
"""Tolerances by type of device and dtype. A wrong sharding causes an error of 1e-3 or more."""

MARGIN, FLOOR = 3.0, 2e-3
"""
A plan in bfloat16 may be MARGIN times as far from float32 as eager PyTorch in bfloat16 on one device, or as far as
FLOOR: both differ from float32 by rounding.
"""

EVERY = ("dp", "zero3", "tp", "searched")
"""Kinds of plans that every family runs. Only the families in `SOME` run the other kinds."""

SOME = ("gpt2", "vgg13", "mixtral", "utransformer")
MIXED_CASES = (("gpt2", "dp"), ("gpt2", "zero3"), ("vit", "tp"), ("llama", "searched"), ("vit", "2 stages, 1f1b"))
QUICK = ("gpt2", "vgg13", "mixtral")
QUICK_KINDS = ("uneven", "duplex", "2 stages, 1f1b", "4 stages, 1f1b", "grid, dp x tp")
"""Families of a quick run, and the kinds of plans that only the first of these families runs."""


@dataclass(frozen=True)
class Compared:
    """A case: a family, a kind of plan, and whether it runs in mixed precision."""

    family: str
    form: str
    mixed: bool = False

    def __str__(self) -> str:
        return f"{self.family}, {self.form}" + (f", {MIXED}" if self.mixed else "")

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of parameters."""
        return torch.float32 if self.mixed or self.family in SMOOTH else torch.float64


def listed(kinds: Mapping[str, Form], *, quick: bool) -> Iterator[Compared]:
    """Yield all cases for the available kinds of plans."""
    for family in QUICK if quick else FAMILIES:
        others = QUICK_KINDS if quick and family == QUICK[0] else kinds if not quick and family in SOME else ()
        chosen = (kind for kind in kinds if kind in EVERY or (kind in others and _takes(family, kind)))
        yield from (Compared(family, kind) for kind in chosen)
    yield from (Compared(*pair, mixed=True) for pair in MIXED_CASES[: 1 if quick else None] if pair[1] in kinds)


def _takes(family: str, form: str) -> bool:
    """Return whether a family can be cut into micro-batches. Experts need the whole batch for load balancing."""
    return family != "mixtral" or not any(word in form for word in ("micro", "duplex", "stages"))


@dataclass(frozen=True)
class _Step:
    """Makes the step of a case. Equal instances share one capture."""

    family: str
    ranks: int
    mixed: bool

    def __call__(self) -> TrainingStep:
        step = tiny_step(self.family, self.ranks)
        return replace(step, precision="bf16-mixed") if self.mixed else step


class Equality:
    """Plans the cases on all ranks, and compares them one by one."""

    def __init__(self, job: Job) -> None:
        self._job, self._forms = job, forms(job)
        self._by_name = {str(case): case for case in listed(self._forms, quick=job.settings.quick)}
        self.cases: Sequence[str] = list(self._by_name)
        self._programs: dict[str, tuple[bool, str]] = {}
        # Rounding differences of products in TF32 exceed the tolerance.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

    def prepare(self, cases: Sequence[str]) -> None:
        """Plan the cases. One rank plans all cases of a family, so that it captures the family once."""
        families = sorted({self._by_name[case].family for case in cases})

        def planned(family: str) -> dict[str, tuple[bool, str]]:
            own_cases = [case for case in cases if self._by_name[case].family == family]
            return {case: program_of(self._check_case(self._by_name[case])) for case in own_cases}

        for programs in self._job.divide([partial(planned, family) for family in families]):
            self._programs |= programs

    def _check_case(self, each: Compared) -> CheckCase:
        form = self._forms[each.form]
        cluster = (hosts_cluster if len(form.mesh.axes) > 1 else split_cluster)(form.mesh)
        step = _Step(each.family, self._job.world, each.mixed)
        return CheckCase(
            step,
            form.mesh,
            form.pins,
            each.dtype,
            "sgd",
            steps=2 if self._job.settings.quick else 3,
            cluster=cluster,
            pipeline=form.pipeline,
            ratios=form.ratios,
            keep_activations=form.keep,
        )

    def run(self, case: str) -> Row:
        """Train the program and single-device PyTorch, and compare them."""
        is_planned, text = self._programs[case]
        if not is_planned:
            return Row(case, "failed", {}, f"no plan: {text}")
        if self._job.rank == 0:
            self._job.file("programs", "equality", f"{case}.py").write_text(text)
        stages = [Stage(*each) for each in load_text(text, f"{case}.py")]
        executor = Executor(stages, self._job.connections.connect(stages))
        each = self._by_name[case]
        given = self._check_case(each)
        reference = partial(_plain_run, given, self._job.device)
        worst = compare_case(given, executor, reference)
        if self._job.rank != 0:
            return Row(case, "measured")
        eager = _eager_errors(given, self._job.device) if each.mixed else {}
        return judged(case, given, worst, eager, TOLERANCES[self._job.device.type][each.dtype])


def _plain_run(case: CheckCase, device: torch.device) -> EagerRun:
    """Return the run on one device in the dtype of the case, without mixed precision."""
    return EagerRun(replace(case.training_step(), precision=None), case.dtype, SEED, device)


def _eager_errors(case: CheckCase, device: torch.device) -> dict[str, Worst]:
    """Return the errors of one device in mixed precision against one device without."""
    mixed, plain = EagerRun(case.training_step(), case.dtype, SEED, device), _plain_run(case, device)
    worst: dict[str, Worst] = {}
    for number, batch in enumerate(case.batches(), 1):
        actual, expected = mixed.step(batch), plain.step(batch)
        worst = largest((*worst.values(), *measure(actual, expected, number).values()))
    return worst


def judged(
    case: str, given: CheckCase, worst: Mapping[str, Worst], eager: Mapping[str, Worst], tolerance: float
) -> Row:
    """
    Return the verdict on a case by its largest error of each kind of value.

    The errors of one device in mixed precision set the limits, unless they are empty, when `tolerance` applies.
    """
    compared = result_of(given, dict(worst), tolerance).errors
    limits = {error.kind: max(MARGIN * eager[error.kind].error, FLOOR) if eager else tolerance for error in compared}
    wrong = [error for error in compared if not error.error <= limits[error.kind]]
    errors = {error.kind: error.error for error in compared}
    if missing := {"loss", "gradient"} - errors.keys():
        return Row(case, "failed", {}, f"not compared: {', '.join(sorted(missing))}")
    figures = {
        "steps": given.steps,
        "dtype": "bfloat16" if eager else str(given.dtype).removeprefix("torch."),
        "loss error": errors["loss"],
        "gradient error": errors["gradient"],
        "largest other error": max((e for kind, e in errors.items() if kind not in ("loss", "gradient")), default=0.0),
        "tolerance": max(limits.values()),
    }
    why = (f"{w.kind} of {w.name} is off by {w.error:.2g} in step {w.step}, above {limits[w.kind]:.2g}" for w in wrong)
    return Row(case, "failed" if wrong else "passed", figures, "; ".join(why))
