"""Compare predicted with measured peak memory, on the rank with the largest predicted peak."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch
from _memory_meter import peak_by_allocator, peak_by_tensors

from shardwright.lowering.capture.calling import batch_items

from .job import Job
from .profiling import measured_cluster
from .programs import MeasuredPlan, PlanCase, executor, known_cases, make_plans, sized_step
from .results import Figure, Row

MIB = 2**20
_KINDS = ("dp", "zero3", "tp", "searched", "recompute", "uneven dp", "2 stages, 1f1b")
PLANS = (
    *(PlanCase("gpt2", kind) for kind in _KINDS),
    PlanCase("gpt2 bf16", "zero3"),
    PlanCase("vgg", "dp"),
    PlanCase("mlp", "zero3"),
)
QUICK = (PlanCase("gpt2", "dp"), PlanCase("gpt2", "zero3"))


class Memory:
    """Runs each plan for three steps, and measures the peak of the third."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._by_name = known_cases(job, QUICK if job.settings.quick else PLANS)
        self.cases: Sequence[str] = list(self._by_name)
        self._plans: dict[str, MeasuredPlan] = {}

    def prepare(self, cases: Sequence[str]) -> None:
        selected = [self._by_name[case] for case in cases]
        plans = make_plans(self._job, "memory", selected, measured_cluster(self._job)) if cases else []
        self._plans = dict(zip(cases, plans, strict=True))
        if self._job.is_cuda:
            _warm(self._job.device)

    def run(self, case: str) -> Row:
        plan, job = self._plans[case], self._job
        if plan.report is None:
            return Row(case, "skipped", {}, f"no plan: {plan.refusal}")
        peaks = job.clock.everyone(self._peak(case, plan))
        predicted: Sequence[int] = plan.report["peak_bytes"]
        rank = max(range(job.world), key=predicted.__getitem__)
        peak, reserved, op = peaks[rank]
        figures: dict[str, Figure] = {"rank": rank, "predicted MiB": predicted[rank] / MIB, "measured MiB": peak / MIB}
        figures["error, %"] = 100 * (predicted[rank] - peak) / peak
        if reserved:
            figures["reserved by the allocator MiB"] = reserved / MIB
        return Row(case, "measured", figures, f"peak at {op}" if op else "")

    def _peak(self, case: str, plan: MeasuredPlan) -> tuple[int, int, str]:
        """Return this rank's peak bytes, the bytes that the allocator reserved (or 0), and the peak's op (or "")."""
        job, step = self._job, sized_step(self._job, self._by_name[case].step)
        gc.collect()
        if job.is_cuda:
            torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(job.device) if job.is_cuda else 0
        runner, batch = executor(job, plan.program, step, case), batch_items(step.batch)
        for _ in range(2):
            runner.step(batch)
        if not job.is_cuda:
            peak, op = peak_by_tensors(runner, batch)
            return peak, 0, op
        return peak_by_allocator(runner, batch, before), torch.cuda.max_memory_reserved(job.device), ""


def _warm(device: torch.device) -> None:
    """Let cuBLAS allocate its workspace, which belongs to no plan."""
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(256, 256, dtype=dtype, device=device)
        torch.addmm(matrix[0], matrix, matrix)
    torch.cuda.synchronize(device)
