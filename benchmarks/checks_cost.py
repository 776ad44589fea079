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

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from _report import arguments, parsed, publish, ratio
from _sides import blocks_in_turn, control_columns, middle_ms, relaunch_on
from parity import STEPS, cluster_of

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep
from shardwright.runtime.faults import RankActivity
from shardwright.runtime.non_finite import FiniteLosses
from shardwright.runtime.replicas import Replicas
from shardwright.runtime.watch import Watch


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
    step = replace(step, model=step.build_model())
    cluster, plan = cluster_of(int(os.environ["WORLD_SIZE"]), "local-4"), sw.PlanOptions(pins=pins)
    return sw.parallelize(step.model, step.loss, step.optimizer, step.batch, cluster, plan=plan, compared=0), step.batch


def measure(name: str, pairs: int, seconds: float) -> dict[str, Any]:
    """Return one row; every rank calls this."""
    step, batch = planned(name)
    sides = (nullcontext, without_checks, without_checks)
    steps, (checked, plain, again), used = blocks_in_turn(partial(step, batch), sides, pairs, seconds)
    checked_cpu, plain_cpu, again_cpu = map(sum, used)
    row = {"step": name, "ranks": dist.get_world_size(), "pairs": pairs, "steps": steps}
    row |= {"step ms": middle_ms(plain, steps), **ratio(checked, plain)}
    row |= {"total": sum(checked) / ((sum(plain) + sum(again)) / 2)}
    row |= {"cpu": checked_cpu / ((plain_cpu + again_cpu) / 2), "A/A cpu": again_cpu / plain_cpu}
    return row | control_columns(again, plain)


def run(doc: str | None, name: str, measure: Callable[..., dict[str, Any]], **pins: str) -> None:
    """Measure in a job of `--ranks` ranks, print the table, and write a JSON file."""
    parser = arguments(doc)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--step", choices=sorted(STEPS), default="gpt2")
    for option, preset in pins.items():
        parser.add_argument(f"--{option}", default=preset)
    options = vars(parsed(parser, pairs=2, seconds=0.05, step="mlp"))
    relaunch_on(options["ranks"])
    given = [options[option] for option in ("step", *pins)]
    row = measure(*given, options["pairs"], options["seconds"])
    if dist.get_rank() == 0:
        publish("-".join([name, *given, str(options["ranks"])]), [row])


if __name__ == "__main__":
    run(__doc__, "checks-cost", measure)
