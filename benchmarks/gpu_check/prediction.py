"""Compare predicted with measured steps: predictions by the fitted profile, and by the measured ops of the plans."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from _figures_of_fit import relative_errors
from _prediction_study import predicted_stages

from shardwright.ir.cluster import Cluster
from shardwright.passes.analysis.simulation.timeline import longest
from shardwright.runtime.profile.journal import ProfileError
from shardwright.runtime.profile.result import Output
from shardwright.runtime.profile.session import ProfileRequest, profile_rank
from shardwright.tools.ir_input import load_module

from .job import Job
from .profiling import measured_cluster
from .programs import MeasuredPlan, PlanCase, executor, known_cases, make_plans, on_device, seconds_in_turn, sized_step
from .results import Figure, Row

STAGE = "prediction"
_KINDS = ("dp", "zero3", "tp", "searched", "micro-batches", "2 stages, 1f1b")
PLANS = (
    *(PlanCase("gpt2", kind) for kind in _KINDS),
    PlanCase("mlp", "dp"),
    PlanCase("mlp", "searched"),
    PlanCase("gpt2 bf16", "dp"),
    PlanCase("gpt2 bf16", "zero3"),
)
QUICK = (PlanCase("gpt2", "dp"), PlanCase("gpt2", "zero3"))
CHOICE = "which plan of gpt2 is the fastest"

OP_SECONDS, QUICK_OP_SECONDS = 20.0, 6.0
ROUNDS, QUICK_ROUNDS = 15, 5


class Prediction:
    """Plans for the measured cluster, times the ops of all plans, and then the steps of each plan."""

    def __init__(self, job: Job) -> None:
        self._job = job
        listed = QUICK if job.settings.quick else PLANS
        # CPUs are about a hundred times slower in bfloat16.
        self._by_name = known_cases(job, [case for case in listed if job.is_cuda or "bf16" not in case.step])
        self.cases: Sequence[str] = [*self._by_name, CHOICE]
        self._plans: dict[str, MeasuredPlan] = {}
        self._table: Cluster | None = None
        self._found: dict[str, tuple[float, float]] = {}

    def prepare(self, cases: Sequence[str]) -> None:
        own = [case for case in cases if case in self._by_name]
        cluster = measured_cluster(self._job)
        plans = make_plans(self._job, STAGE, [self._by_name[case] for case in own], cluster)
        self._plans = dict(zip(own, plans, strict=True))
        self._table = self._timed(cluster, [plan for plan in plans if plan.program])

    def _timed(self, known: Cluster, plans: Sequence[MeasuredPlan]) -> Cluster | None:
        """Return the cluster with measured times of the plans' ops, or None if the measurement failed."""
        samples = tuple({sample.work.key: sample for plan in plans for sample in plan.samples}.values())
        rehearsals = tuple(plan.rehearsal for plan in plans if plan.rehearsal is not None)
        seconds = QUICK_OP_SECONDS if self._job.settings.quick else OP_SECONDS
        request = ProfileRequest(self._job.mesh(), samples, seconds, network=False, rehearsals=rehearsals)
        journal = profile_rank(request, self._job.device)
        try:
            return Output(known.name, samples, known).profile(journal).cluster
        except ProfileError:
            return None

    def run(self, case: str) -> Row:
        """Measure the steps of a plan; the last case compares the plan predicted to be the fastest with the fastest."""
        if case == CHOICE:
            return self._choice()
        plan, job = self._plans[case], self._job
        if plan.report is None:
            return Row(case, "skipped", {}, f"no plan: {plan.refusal}")
        step = sized_step(job, self._by_name[case].step)
        runner, batch = executor(job, plan.program, step, case), on_device(job, step.batch)
        rounds = QUICK_ROUNDS if job.settings.quick else ROUNDS
        seconds = [value for (value,) in seconds_in_turn(job, [partial(runner.step, batch)], rounds)]
        del runner
        gc.collect()
        measured, fitted = statistics.median(seconds), float(plan.report["predicted_step_s"])
        figures: dict[str, Figure] = {"measured ms": 1e3 * measured, "predicted ms, by fit": 1e3 * fitted}
        figures["error by fit, %"] = 100 * relative_errors([fitted], [measured])[0]
        if job.rank == 0 and self._table is not None:
            by_table = self._predicted(case, self._table)
            figures["predicted ms, by timed ops"] = 1e3 * by_table
            figures["error by timed ops, %"] = 100 * relative_errors([by_table], [measured])[0]
            self._found[case] = (by_table, measured)
        return Row(case, "measured", figures)

    def _predicted(self, case: str, cluster: Cluster) -> float:
        """Return the predicted step of a plan by the measured times of its ops."""
        module = load_module(str(self._job.settings.out / "programs" / STAGE / case / "step.mlir"))
        return longest(predicted_stages(module, replace(cluster), "table"))["step"]

    def _choice(self) -> Row:
        gpt2 = {case: times for case, times in self._found.items() if self._by_name[case].step == "gpt2"}
        if len(gpt2) < 2:
            return Row(CHOICE, "skipped", {}, "fewer than two plans were both predicted and measured")
        predicted, fastest = (min(gpt2, key=lambda case: gpt2[case][at]) for at in (0, 1))
        slower = gpt2[predicted][1] / gpt2[fastest][1] - 1.0
        note = f"predicted to be the fastest: {predicted}; measured: {fastest}"
        return Row(CHOICE, "measured", {"slower than the fastest by, %": 100 * slower}, note)
