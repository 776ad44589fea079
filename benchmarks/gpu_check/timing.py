"""Time steps in turn, in blocks long enough for the clock's resolution, on the slowest rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from _sides import by_round

from .job import Job

BLOCK_SECONDS = 0.03
"""Shortest seconds of a block of steps, since ranks leave a barrier up to a millisecond apart."""

WARM_STEPS = 3


def seconds_in_turn(job: Job, sides: Sequence[Callable[[], object]], rounds: int) -> list[tuple[float, ...]]:
    """
    Return the seconds of a step of each side on the slowest rank, by round; sides take turns in random order.

    Every rank calls this with equal numbers of sides and rounds.
    """
    blocks = [partial(_timed, job, side, _block(job, side)) for side in sides]
    by_rank = job.clock.everyone(by_round(blocks, rounds))
    return [tuple(max(column) for column in zip(*rows, strict=True)) for rows in zip(*by_rank, strict=True)]


def _block(job: Job, side: Callable[[], object]) -> int:
    """Return the number of steps of a block, measured after warm-up steps."""
    for _ in range(WARM_STEPS):
        side()
    return max(1, math.ceil(BLOCK_SECONDS / job.clock.slowest(_timed(job, side, 2))))


def _timed(job: Job, side: Callable[[], object], count: int) -> float:
    """Return this rank's seconds of a step."""
    job.clock.wait_for_all()
    return job.clock.calls(side, count)
