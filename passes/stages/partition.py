"""
Which contiguous layers each stage of a pipeline gets: AMP's dynamic program (supplement 6.4).

With B micro-batches, and t_i and c_i the seconds that stage i computes and communicates for one micro-batch, a step
takes about

    (B - 1) * max_i t_i  +  sum_i (t_i + c_i)                                        (6.2, equations 4 and 6)

AMP's state is (layers so far, stages so far, largest t so far). Among states with equal layers and stages, only states
that are not dominated in both the largest t and the sum are kept; the answer is exact. Costs of communication are
summed here, while the released code drops them, and a stage has the speed of its own devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

StageCost: TypeAlias = Callable[[int, int, int], float]
"""Seconds per micro-batch of stage i with the layers a .. b - 1."""


@dataclass(frozen=True)
class Partition:
    """`bounds[i]` is the first layer of stage i, the last entry the number of layers; `seconds` is the step's time."""

    bounds: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class _StageDivision:
    """A division of the first layers into stages: its largest stage, the sum of all costs, and where stages begin."""

    largest: float
    total: float
    bounds: tuple[int, ...]


def partition(
    layers: int,
    stages: int,
    micro_batches: int,
    compute: StageCost,
    communicate: StageCost,
    bounds: Sequence[int] | None = None,
) -> Partition:
    """
    Return the cheapest division of `layers` layers among `stages` stages with at least one layer each.

    Args:
        bounds: a fixed division; only its cost is computed.

    Raises:
        ValueError: if there are more stages than layers.
    """
    if not 1 <= stages <= layers:
        raise ValueError(f"{layers} layers cannot be divided among {stages} stages; each needs at least one")
    states = {0: [_StageDivision(0.0, 0.0, (0,))]}
    for stage in range(stages):
        left = stages - stage - 1
        reached: dict[int, list[_StageDivision]] = {}
        for first, found in states.items():
            ends = range(first + 1, layers - left + 1) if left else [layers]
            if bounds is not None:
                ends = [bounds[stage + 1]]
            for end in ends:
                seconds, sent = compute(stage, first, end), communicate(stage, first, end)
                reached.setdefault(end, []).extend(
                    _StageDivision(max(s.largest, seconds), s.total + seconds + sent, (*s.bounds, end)) for s in found
                )
        states = {end: _undominated(found) for end, found in reached.items()}
    complete = ((state.total + (micro_batches - 1) * state.largest, state.bounds) for state in states[layers])
    seconds, bounds = min(complete)
    return Partition(bounds, seconds)


def _undominated(states: list[_StageDivision]) -> list[_StageDivision]:
    """Return the states that no other state beats both in its largest stage and in its sum."""
    best: list[_StageDivision] = []
    for state in sorted(states, key=lambda s: (s.largest, s.total)):
        if not best or state.total < best[-1].total:
            best.append(state)
    return best
