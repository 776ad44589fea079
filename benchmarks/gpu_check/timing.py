"""Steps by the clock: each side's in turn, in blocks that are long enough for the clock, on the slowest rank."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence

from .job import Job

BLOCK_SECONDS = 0.03
"""How long a block of steps takes, at least: ranks leave a barrier up to a millisecond apart."""

WARM_STEPS = 3


def seconds_in_turn(job: Job, sides: Sequence[Callable[[], object]], rounds: int) -> list[tuple[float, ...]]:
    """
    The seconds of a step of each side, round by round; in a round the sides take turns in an order of its own.

    Every rank calls this with as many sides and rounds, and gets the same numbers, those of the slowest rank.
    """
    counts = [_block(job, side) for side in sides]
    generator = random.Random(0)
    mine: list[list[float]] = []
    for _ in range(rounds):
        seconds = [0.0] * len(sides)
        for index in generator.sample(range(len(sides)), len(sides)):
            seconds[index] = _timed(job, sides[index], counts[index])
        mine.append(seconds)
    by_rank = job.clock.everyone(mine)
    return [tuple(max(column) for column in zip(*rows, strict=True)) for rows in zip(*by_rank, strict=True)]


def _block(job: Job, side: Callable[[], object]) -> int:
    """How many steps make a block, once the first have warmed caches up."""
    for _ in range(WARM_STEPS):
        side()
    once = job.clock.slowest(_timed(job, side, 2))
    return max(1, math.ceil(BLOCK_SECONDS / once))


def _timed(job: Job, side: Callable[[], object], count: int) -> float:
    """This rank's seconds of a step."""
    job.clock.wait_for_all()
    began = time.perf_counter()
    for _ in range(count):
        side()
    job.settle()
    return (time.perf_counter() - began) / count
