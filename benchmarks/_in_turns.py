"""Time the steps of several programs in random order in the same processes, so that noise affects all equally."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import torch.distributed as dist


def seconds_by_round(steps: Sequence[Callable[[], object]], rounds: int, warm: int = 3) -> list[list[float]]:
    """
    Run every step once per round, each round in a different order, and return the seconds of each step by round.

    Every rank of the job calls this. A step is timed from one barrier to the next.

    Args:
        warm: number of untimed rounds before the timed rounds.
    """
    generator, rows = random.Random(0), list[list[float]]()
    order = list(range(len(steps)))
    for number in range(rounds + warm):
        generator.shuffle(order)
        seconds = [0.0] * len(steps)
        for index in order:
            dist.barrier()
            start = time.perf_counter()
            steps[index]()
            dist.barrier()
            seconds[index] = time.perf_counter() - start
        if number >= warm:
            rows.append(seconds)
    return rows
