"""
Measure the cost of profiling a step: steps inside `step.profile()` against steps outside, in turn in one job.

    python benchmarks/profile_cost.py [--ranks 2] [--pairs 60] [--seconds 0.5] [--step gpt2|mlp] [--pins zero3]

A pair is a block of profiled steps and a block of other steps, each of about --seconds, in random order. `ratio` is the
median of the paired ratios with its 95 % interval. `cpu` is the same for processor seconds of all threads of rank 0,
which other processes disturb less, and `least` is the ratio of the shortest blocks. The controls `A/A` compare two
blocks without profiling. `call us` is the processor time that recording adds to one collective. `calls of step` is that
time for all collectives of a step, as a share of the step's processor time; the ratios cannot distinguish it from
noise. These figures exclude the final gathering of all ranks' measurements, which is `gather ms` for ten steps.
"""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from _report import ratio
from _sides import blocks_in_turn, middle_ms
from checks_cost import planned, run

from shardwright.api.distributed_step import DistributedStep
from shardwright.runtime.measured import gathered, recorder_of
from shardwright.runtime.requests import Pending, Request
from shardwright.runtime.step_recorder import StepRecorder


def measure(name: str, pins: str, pairs: int, seconds: float) -> dict[str, Any]:
    """Return one row; every rank calls this."""
    step, batch = planned(name, pins)
    sides = (lambda: recorder_of(step._executor, compiled=False).recording(), nullcontext, nullcontext)
    steps, times, used = blocks_in_turn(partial(step, batch), sides, pairs, seconds)
    row: dict[str, Any] = {"step": name, "pins": pins, "ranks": dist.get_world_size(), "pairs": pairs, "steps": steps}
    calls, gathering = _recorded(step, batch)
    row |= {"calls": calls, "step ms": middle_ms(times[1], steps)}
    for title, (profiled, plain, again) in (("", times), ("cpu ", used)):
        row |= {f"{title}{column}": value for column, value in ratio(profiled, plain).items()}
        row |= {f"{title}A/A": ratio(again, plain)["ratio"]}
        row |= {f"{title}least": min(profiled) / min(plain), f"{title}least A/A": min(again) / min(plain)}
    each, of_step = seconds_of_a_call(), statistics.median(used[1]) / steps
    row |= {"call us": 1e6 * each, "calls of step": each * row["calls"] / of_step}
    return row | {"gather ms": 1e3 * gathering}


class _Over:
    """Completed work."""

    def wait(self) -> None:
        """Return at once."""


def seconds_of_a_call(count: int = 2000, rounds: int = 9) -> float:
    """Return the median processor seconds that recording adds to a completed collective's start and wait."""
    value = torch.ones(4)
    request, pending = Request("all_reduce", (value,), ("gpu",)), Pending([_Over()], lambda: [value])
    recorder, added = StepRecorder(torch.device("cpu"), 0, [(0, 1)]), list[float]()

    def call_seconds(*, recorded: bool) -> float:
        with recorder.recording(), recorder.step() if recorded else nullcontext():
            start = time.process_time()
            for _ in range(count):
                recorder.collective(request, (0, 1), lambda: pending, now=False).wait()
            return time.process_time() - start

    for _ in range(rounds):
        added.append((call_seconds(recorded=True) - call_seconds(recorded=False)) / count)
    return statistics.median(added)


def _recorded(step: DistributedStep, batch: Any) -> tuple[int, float]:
    """Return the number of collectives that a step starts, and the seconds of gathering the figures of ten steps."""
    recorder = recorder_of(step._executor, compiled=False)
    with recorder.recording():
        for _ in range(10):
            step(batch)
    start = time.perf_counter()
    gathered(recorder, step._executor)
    return len(recorder.steps[0].traffic), time.perf_counter() - start


if __name__ == "__main__":
    run(__doc__, "profile-cost", measure, pins="zero3")
