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

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from _report import interval, parsed, publish
from checks_cost import WARM_STEPS, planned
from parity import STEPS

from shardwright.api.distributed_step import DistributedStep
from shardwright.runtime.measured import gathered, recorder_of
from shardwright.runtime.requests import Pending, Request
from shardwright.runtime.step_recorder import StepRecorder


def seconds_of(step: DistributedStep, batch: Any, steps: int, *, measured: bool) -> tuple[float, float]:
    """Return the seconds of a block of steps on all ranks, and this rank's processor seconds."""
    recorder = recorder_of(step._executor, compiled=False)
    with recorder.recording() if measured else nullcontext():
        dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step(batch)
        dist.barrier()
        return time.perf_counter() - start, time.process_time() - used


def measure(name: str, pins: str, pairs: int, seconds: float) -> dict[str, Any]:
    """Return one row; every rank calls this."""
    step, batch = planned(name, pins)
    seconds_of(step, batch, WARM_STEPS, measured=True)
    warm = torch.tensor(seconds_of(step, batch, WARM_STEPS, measured=False)[0] / WARM_STEPS)
    dist.broadcast(warm, 0)
    steps = max(5, round(seconds / warm.item()))
    times, used = list[tuple[float, ...]](), list[tuple[float, ...]]()
    generator = random.Random(0)
    for _ in range(pairs):
        order, timed = [0, 1, 2], [(0.0, 0.0)] * 3
        generator.shuffle(order)
        for side in order:
            timed[side] = seconds_of(step, batch, steps, measured=side == 0)
        times.append(tuple(each for each, _ in timed))
        used.append(tuple(each for _, each in timed))
    row: dict[str, Any] = {
        "step": name,
        "pins": pins,
        "ranks": dist.get_world_size(),
        "pairs": pairs,
        "steps": steps,
        "calls": _calls(step, batch),
        "step ms": 1e3 * statistics.median(b for _, b, _ in times) / steps,
    }
    for title, rows in (("", times), ("cpu ", used)):
        ratios, control = [a / b for a, b, _ in rows], [c / b for _, b, c in rows]
        low, high = interval(ratios)
        row |= {f"{title}ratio": statistics.median(ratios), f"{title}low": low, f"{title}high": high}
        row |= {f"{title}A/A": statistics.median(control)}
        least = [min(column) for column in zip(*rows, strict=True)]
        row |= {f"{title}least": least[0] / least[1], f"{title}least A/A": least[2] / least[1]}
    each, of_step = seconds_of_a_call(), statistics.median(b for _, b, _ in used) / steps
    row |= {"call us": 1e6 * each, "calls of step": each * row["calls"] / of_step}
    return row | {"gather ms": 1e3 * _gathering(step, batch)}


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


def _calls(step: DistributedStep, batch: Any) -> int:
    """Return the number of collectives that a step starts."""
    recorder = recorder_of(step._executor, compiled=False)
    with recorder.recording():
        step(batch)
    return len(recorder.steps[0].traffic)


def _gathering(step: DistributedStep, batch: Any) -> float:
    """Return the seconds that the ranks take to gather the measurements of ten steps."""
    recorder = recorder_of(step._executor, compiled=False)
    with recorder.recording():
        for _ in range(10):
            step(batch)
    start = time.perf_counter()
    gathered(recorder, step._executor)
    return time.perf_counter() - start


def main() -> None:
    """Print the table, and write a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--step", choices=sorted(STEPS), default="gpt2")
    parser.add_argument("--pins", default="zero3")
    options = parsed(parser, pairs=2, seconds=0.05, step="mlp")
    if "RANK" not in os.environ:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
        sys.exit(subprocess.run([*torchrun, *sys.argv]).returncode)
    row = measure(options.step, options.pins, options.pairs, options.seconds)
    if dist.get_rank() == 0:
        arguments = f"--step {options.step} --pins {options.pins} --ranks {options.ranks} --pairs {options.pairs}"
        command = f"python benchmarks/profile_cost.py {arguments}"
        publish(f"profile-cost-{options.step}-{options.pins}-{options.ranks}", [row], command=command)


if __name__ == "__main__":
    main()
