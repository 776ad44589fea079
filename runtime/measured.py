"""The recorded steps of all ranks, combined on one clock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from ..ir.measured_steps import MeasuredRank, MeasuredSteps, MeasuredTraffic, aligned
from ..ir.overlap import ALL, PHASES, Span
from .all_ranks import from_rank_0, of_all_ranks
from .executor import Executor
from .faults import ACTIVITY
from .groups import job_rank
from .lifetime import Identity
from .plan import PlanError
from .step_recorder import StepRecorder

_ROUNDS = 10


def recorder_of(executor: Executor, *, compiled: bool) -> StepRecorder:
    """Return a recorder of this rank's steps; a compiled program has no ranges that tell its phase."""
    first = ALL if compiled else PHASES[0]
    return StepRecorder(executor.comm.device, job_rank(), [plan.ranks for plan in executor.plans], first)


def gathered(recorder: StepRecorder, executor: Executor) -> MeasuredSteps | None:
    """
    Gather the recorded steps of all ranks on every rank, in seconds from the start of each step; return None if there
    are none. Every rank must call this, after the same number of steps.

    Raises:
        PlanError: the ranks recorded different numbers of steps.
    """
    name, device = executor.plan.name, executor.comm.device
    machines = of_all_ranks(Identity.mine().machine, "the clocks of the ranks")
    remote = [rank for rank, machine in enumerate(machines) if not machine or machine != machines[0]]
    ahead = clocks_ahead([rank for rank in remote if rank], device)
    by_rank = of_all_ranks(recorder.steps, "the steps that ranks recorded")
    return _together(name, by_rank, [ahead.get(rank, 0.0) for rank in range(len(by_rank))])


def clocks_ahead(remote: Sequence[int], device: torch.device) -> Mapping[int, float]:
    """
    Return how many seconds the clocks of remote ranks are ahead of rank 0's clock, on every rank.

    The quickest of several round trips decides: the remote clock is assumed read halfway. Every rank must call this.
    """
    me, offsets = job_rank(), dict[int, float]()
    for rank in remote:
        quickest = float("inf")
        for _ in range(_ROUNDS if me in (0, rank) else 0):
            told = torch.zeros(1, dtype=torch.float64, device=device)
            if me == rank:
                ACTIVITY.wait("the clock of rank 0", lambda: dist.recv(told, 0))
                dist.send(told.fill_(time.perf_counter()), 0)
                continue
            start = time.perf_counter()
            dist.send(told, rank)
            ACTIVITY.wait(f"the clock of rank {rank}", lambda: dist.recv(told, rank))
            now = told.item()
            if (passed := time.perf_counter() - start) < quickest:
                quickest, offsets[rank] = passed, now - (start + passed / 2)
    return from_rank_0(offsets, what="the clock of rank 0") if remote else offsets


def _together(name: str, by_rank: Sequence[Sequence[MeasuredRank]], ahead: Sequence[float]) -> MeasuredSteps | None:
    if len(counts := {len(rank_steps) for rank_steps in by_rank}) > 1:
        raise PlanError(
            f"the ranks measured {' or '.join(map(str, sorted(counts)))} steps; have every rank train the same ones "
            "inside `with step.profile()`"
        )
    steps = [[_later(rank, -by) for rank, by in zip(step, ahead, strict=True)] for step in zip(*by_rank, strict=True)]
    aligned_steps = [aligned([_later(rank, -min(other.start for other in step)) for rank in step]) for step in steps]
    return MeasuredSteps(name, tuple(aligned_steps)) if aligned_steps else None


def _later(rank: MeasuredRank, by: float) -> MeasuredRank:
    """Shift the times of a rank's step by a number of seconds."""

    def span(each: Span) -> Span:
        return each[0] + by, each[1] + by

    def traffic(each: MeasuredTraffic) -> MeasuredTraffic:
        return replace(each, start=each.start + by, end=None if each.end is None else each.end + by)

    return replace(
        rank,
        start=rank.start + by,
        end=rank.end + by,
        computed={phase: tuple(map(span, spans)) for phase, spans in rank.computed.items()},
        traffic=tuple(map(traffic, rank.traffic)),
    )
