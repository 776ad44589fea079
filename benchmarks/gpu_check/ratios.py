"""Compare step times with torch's own parallelism: the same model, batch and precision, step by step in turn."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from _report import ratio
from _sides import Peer

from .job import Job
from .profiling import measured_cluster
from .programs import MeasuredPlan, PlanCase, executor, make_plans, on_device, seconds_in_turn, sized_step
from .results import Figure, Row

ROUNDS, QUICK_ROUNDS = 40, 12
SAME_LOSS = {None: 1e-4, "bf16-mixed": 3e-2}
"""Largest relative difference of first losses by precision; beyond it the sides train differently."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of one of our plans with a peer in `PEERS` of `_sides`, which may run under `torch.compile`."""

    step: str
    form: str
    peer: str
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.step}: {self.form} / {TITLES[self.peer]}{', compiled' if self.compiled else ''}"

    @property
    def plan(self) -> PlanCase:
        return PlanCase(self.step, self.form)


TITLES = {"ddp": "DDP", "fsdp2": "FSDP2", "tensor parallel": "torch tensor parallel"}
"""Names of peers in the report."""

_PAIRS = (("dp", "ddp"), ("zero3", "fsdp2"), ("tp", "tensor parallel"), ("searched", "ddp"))
FLOAT32 = tuple(Comparison("gpt2", *pair) for pair in _PAIRS)
COMPILED = tuple(Comparison("gpt2", *pair, compiled=True) for pair in _PAIRS[:2])
MIXED = tuple(Comparison("gpt2 bf16", *pair, compiled) for pair in _PAIRS for compiled in (False, True))


class Ratios:
    """Runs ours, the peer and a second copy of the peer in turn."""

    def __init__(self, job: Job) -> None:
        self._job = job
        listed = FLOAT32[:2] if job.settings.quick else (*FLOAT32, *COMPILED, *(MIXED if job.is_cuda else ()))
        self._by_name = {str(comparison): comparison for comparison in listed}
        self.cases: Sequence[str] = list(self._by_name)
        self._plans: dict[PlanCase, MeasuredPlan] = {}

    def prepare(self, cases: Sequence[str]) -> None:
        plans = list(dict.fromkeys(self._by_name[case].plan for case in cases))
        results = make_plans(self._job, "ratios", plans, measured_cluster(self._job)) if plans else []
        self._plans = dict(zip(plans, results, strict=True))

    def run(self, case: str) -> Row:
        pair, job = self._by_name[case], self._job
        plan, step = self._plans[pair.plan], sized_step(job, pair.step)
        if not plan.program:
            return Row(case, "skipped", {}, f"no plan: {plan.refusal}")
        try:
            peers = [Peer(pair.peer, pair.compiled).start(step, job.device) for _ in range(2)]
            # Models that cannot be compiled raise an error in the first step.
            first, _ = (side().detach().clone().float() for side in peers)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            return Row(case, "skipped", {}, f"{TITLES[pair.peer]}: {reason}")
        # A peer returns the loss of a rank's equal part of the batch.
        dist.all_reduce(first)
        loss = first.item() / job.world
        runner, batch = executor(job, plan.program, step, case), on_device(job, step.batch)
        ours = partial(runner.step, batch)
        difference = abs(ours().item() - loss) / abs(loss)
        rows = seconds_in_turn(job, [ours, *peers], QUICK_ROUNDS if job.settings.quick else ROUNDS)
        del runner, ours, peers
        gc.collect()
        return _row(case, rows, difference, SAME_LOSS[step.precision])


def _row(case: str, rows: Sequence[tuple[float, ...]], difference: float, same: float) -> Row:
    """Return the medians of the paired ratios with their intervals. The row fails if the sides train differently."""
    ours, peer, again = zip(*rows, strict=True)
    ratios, control = ratio(ours, peer), ratio(again, peer)
    figures: dict[str, Figure] = {"ours ms": 1e3 * statistics.median(ours), "peer ms": 1e3 * statistics.median(peer)}
    for title, interval, found in (("ours / peer", "95 %", ratios), ("peer / itself", "95 % of that", control)):
        figures |= {title: found["ratio"], interval: f"{found['low']:.3f} to {found['high']:.3f}"}
    figures |= {"rounds": len(rows), "first losses differ by": difference}
    if difference > same:
        return Row(case, "failed", figures, f"the first losses differ by {difference:.2g}, above {same:g}")
    return Row(case, "measured", figures)
