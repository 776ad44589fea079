"""Plans of measured steps: each is made by one rank, saved in the folder of the report, and run by all ranks."""

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
    tasks = [partial(_planned, job, folder, case, kinds[case.form], cluster) for case in cases]
    return job.divide(tasks)


def _planned(job: Job, folder: Any, case: PlanCase, form: Form, cluster: Cluster) -> MeasuredPlan:
    options = PlanOptions(pins=form.pins, pipeline=form.pipeline, ratios=form.ratios, keep_activations=form.keep)
    on = cluster if form.mesh == cluster.mesh else on_mesh(cluster, form.mesh)
    try:
        plan = compile_step(sized_step(job, case.step), on, options, name=str(case).replace(", ", "_"))
    # Any error is a failure of this plan only, and is reported with it.
    except Exception as error:
        return MeasuredPlan(refusal=f"{type(error).__name__}: {error}")
    plan.save(folder / str(case))
    return MeasuredPlan(plan.program, plan.report, samples_of_plan(plan.module), rehearsal_of(plan.module, str(case)))
