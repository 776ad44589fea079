"""Plans of measured steps: made by one rank each, kept in the folder of the report, and run by all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardwright.api.calibration.op_samples import rehearsal_of, samples_of_plan
from shardwright.api.compile import PlanOptions, compile_step
from shardwright.ir.cluster import Cluster
from shardwright.ir.submesh import on_mesh
from shardwright.runtime.profile.rehearsal import Rehearsal
from shardwright.runtime.profile.samples import OpSample

from .job import Job
from .programs import Form, forms
from .sizes import sized_step


@dataclass(frozen=True)
class MeasuredPlan:
    """
    A plan as ranks need it.

    Args:
        program: its text; empty where there is no plan.
        report: what `plan.json` holds.
        samples, rehearsal: the ops to time for it.
        refusal: why there is no plan.
    """

    program: str = ""
    report: Mapping[str, Any] | None = None
    samples: tuple[OpSample, ...] = ()
    rehearsal: Rehearsal | None = None
    refusal: str = ""


@dataclass(frozen=True)
class PlanCase:
    """A step of `sizes` in a kind of plan of `programs`."""

    step: str
    form: str

    def __str__(self) -> str:
        return f"{self.step}, {self.form}"


def known_cases(job: Job, cases: Sequence[PlanCase]) -> dict[str, PlanCase]:
    """Those that the job has ranks for, by name."""
    return {str(each): each for each in cases if each.form in forms(job)}


def make_plans(job: Job, stage: str, cases: Sequence[PlanCase], cluster: Cluster) -> list[MeasuredPlan]:
    """Plan the cases for a cluster, each on one rank; all ranks get all plans."""
    kinds, folder = forms(job), job.settings.out / "programs" / stage
    tasks = [partial(_planned, job, folder, each, kinds[each.form], cluster) for each in cases]
    return job.divide(tasks)


def _planned(job: Job, folder: Any, case: PlanCase, form: Form, cluster: Cluster) -> MeasuredPlan:
    options = PlanOptions(pins=form.pins, pipeline=form.pipeline, ratios=form.ratios, keep_activations=form.keep)
    on = cluster if form.mesh == cluster.mesh else on_mesh(cluster, form.mesh)
    try:
        made = compile_step(sized_step(job, case.step), on, options, name=str(case).replace(", ", "_"))
    # Whatever is wrong with one plan is that plan's own, and is told.
    except Exception as error:
        return MeasuredPlan(refusal=f"{type(error).__name__}: {error}")
    made.save(folder / str(case))
    return MeasuredPlan(made.program, made.report, samples_of_plan(made.module), rehearsal_of(made.module, str(case)))
