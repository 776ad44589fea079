"""
Measure the cost of the checks of a running job: steps with checks against steps without, in turn in one job.

    python benchmarks/checks_cost.py [--ranks 2] [--pairs 60] [--seconds 0.5] [--step gpt2|mlp]

A pair is a block of steps with checks and a block without, each of about --seconds, in random order. The checks are all
checks that a job has after its first ten steps: the reports of the watch thread, the positions of the main thread, the
test of every loss, and the comparison of replicas. `ratio` is the median of the paired ratios with its 95 % interval.
`total` is the ratio of all seconds together, which includes the rare comparisons of replicas. `cpu` is the ratio of the
processor seconds of all threads of a rank, which other processes disturb less. `A/A` compares blocks without checks.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from _report import interval, parsed, publish
from parity import STEPS

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.submesh import on_mesh
from shardwright.runtime.faults import RankActivity
from shardwright.runtime.non_finite import FiniteLosses
from shardwright.runtime.replicas import Replicas
from shardwright.runtime.watch import Watch

WARM_STEPS = 15


@contextmanager
def without_checks() -> Generator[None, None, None]:
    """Disable all checks of steps inside the block."""
    nothing: Any = lambda *_, **__: None  # noqa: E731
    plain: Any = {"wait": lambda _, __, done, **___: done(), "stepping": lambda _: nullcontext()}
    with (
        patch.multiple(RankActivity, **plain),
        patch.multiple(Replicas, look=nothing, took=nothing),
        patch.multiple(FiniteLosses, see=nothing),
        patch.multiple(Watch, _turn=nothing),
    ):
        yield


def planned(name: str, pins: str = "dp") -> tuple[DistributedStep, Any]:
    """Return a step on all ranks that never compares batches, data-parallel unless pinned otherwise, and its batch."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    step = STEPS[name]()
    cluster = on_mesh(find_cluster("local-4"), Mesh.of(gpu=int(os.environ["WORLD_SIZE"])))
    step = replace(step, model=step.build_model())
    plan = sw.PlanOptions(pins=pins)
    return sw.parallelize(step.model, step.loss, step.optimizer, step.batch, cluster, plan=plan, compared=0), step.batch


def seconds_of(step: DistributedStep, batch: Any, steps: int, *, checked: bool) -> tuple[float, float]:
    """Return the seconds of a block of steps on all ranks, and this rank's processor seconds."""
    with nullcontext() if checked else without_checks():
        dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step(batch)
        dist.barrier()
        return time.perf_counter() - start, time.process_time() - used


def measure(name: str, pairs: int, seconds: float) -> dict[str, Any]:
    """Return one row; every rank calls this."""
    step, batch = planned(name)
    seconds_of(step, batch, WARM_STEPS, checked=True)
    step_seconds = torch.tensor(seconds_of(step, batch, WARM_STEPS, checked=True)[0] / WARM_STEPS)
    dist.broadcast(step_seconds, 0)
    steps = max(5, round(seconds / step_seconds.item()))
    rows: list[tuple[float, float, float]] = []
    used = [0.0] * 3
    generator = random.Random(0)
    for _ in range(pairs):
        order, timed = [0, 1, 2], [0.0] * 3
        generator.shuffle(order)
        for side in order:
            timed[side], cpu = seconds_of(step, batch, steps, checked=side == 0)
            used[side] += cpu
        rows.append((timed[0], timed[1], timed[2]))
    ratios, control = [a / b for a, b, _ in rows], [c / b for _, b, c in rows]
    (low, high), (control_low, control_high) = interval(ratios), interval(control)
    return {
        "step": name,
        "ranks": dist.get_world_size(),
        "pairs": pairs,
        "steps": steps,
        "step ms": 1e3 * statistics.median(b for _, b, _ in rows) / steps,
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "total": sum(a for a, _, _ in rows) / sum((b + c) / 2 for _, b, c in rows),
        "cpu": used[0] / ((used[1] + used[2]) / 2),
        "A/A cpu": used[2] / used[1],
        "A/A": statistics.median(control),
        "A/A low": control_low,
        "A/A high": control_high,
    }


def main() -> None:
    """Print the table, and write a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--step", choices=sorted(STEPS), default="gpt2")
    options = parsed(parser, pairs=2, seconds=0.05, step="mlp")
    if "RANK" not in os.environ:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
        sys.exit(subprocess.run([*torchrun, *sys.argv]).returncode)
    row = measure(options.step, options.pairs, options.seconds)
    if dist.get_rank() == 0:
        arguments = f"--step {options.step} --ranks {options.ranks} --pairs {options.pairs}"
        command = f"python benchmarks/checks_cost.py {arguments}"
        publish(f"checks-cost-{options.step}-{options.ranks}", [row], command=command)


if __name__ == "__main__":
    main()
