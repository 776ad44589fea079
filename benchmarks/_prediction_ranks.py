"""What each rank of a measurement does: steps of several programs in turn, or the lines of one program by the clock."""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shardwright.api.training_step import TrainingStep
from shardwright.lowering.load_program import load_text
from shardwright.runtime.executor import Executor
from shardwright.runtime.stages import Stage, connect

_WARM, _TIMED = 1, 2
"""Steps of a program each time that it has its turn: the first of them finds cold caches."""

_CLOCK = "_line"


@dataclass(frozen=True)
class Measured:
    """The seconds of every timed step, by name of the program; of a step, until the last rank is done."""

    seconds: dict[str, list[float]]

    def middle(self, name: str) -> float:
        """The median of a program."""
        return statistics.median(self.seconds[name])


def executor(step: TrainingStep, text: str, name: str) -> Executor:
    """This rank's run of a program, with the weights of seed 0."""
    stages = [Stage(*each) for each in load_text(text, name)]
    made = Executor(stages, connect(stages, torch.device("cpu")))
    made.initialize(step.model, 0)
    return made


def time_steps(make: Callable[[], TrainingStep], programs: Sequence[tuple[str, str]], seconds: float) -> Measured:
    """Run the programs in turn, in random order, for about `seconds`."""
    torch.set_num_threads(1)
    step = make()
    batch = step.named_batch() if hasattr(step, "named_batch") else _batch(step)
    sides = [executor(step, text, name) for name, text in programs]
    for side in sides:
        side.step(batch)
    generator, order = random.Random(0), list(range(len(sides)))
    rows: list[list[float]] = [[] for _ in sides]
    start = time.perf_counter()
    while _together(time.perf_counter() - start) < seconds:
        generator.shuffle(order)
        for index in order:
            for _ in range(_WARM):
                sides[index].step(batch)
            rows[index] += [_timed(lambda side=sides[index]: side.step(batch)) for _ in range(_TIMED)]
    slowest = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return Measured({name: row for (name, _), row in zip(programs, slowest.tolist(), strict=True)})
