"""
Where the chunks of stages begin, for stages of several chunks.

With B micro-batches, a stage that computes T seconds for one micro-batch in a chunk and its later chunks ends no
earlier than

    B * T  +  the seconds of all chunks before that chunk

because forward must reach the chunk, and backward must return from it. Links work at the same time as stages: for a
link that is busy for N seconds instead, the bound is B * N plus the seconds of all chunks up to the first that sends.
The estimate of a step is the maximum of these bounds plus the link seconds of one micro-batch. A transfer within a
stage is free, so the two ends of a skip connection, and both uses of a tied weight, are best in chunks of one stage.
The last round may end before the last stage: two stages can have three chunks, as 0, 1, 0.

A few divisions are all tried. Among many, a local search starts at the best division into chunks of about equal seconds
(`partition`) and moves one begin at a time until no move is faster.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import comb

from .divide import places_of_layers
from .partition import Partition, partition
from .stage_costs import Crossing, StageCosts

FEW = 2000
"""Largest number of divisions that are all tried."""


def rounds(stages: int, chunks: int) -> range:
    """Return the possible total numbers of chunks if the first stage has `chunks` and no stage has more."""
    return range(stages * (chunks - 1) + 1, stages * chunks + 1)


def best_bounds(costs: StageCosts) -> tuple[int, ...]:
    """
    Return the bounds of the fastest division of all layers into stages, each of `costs.chunks` chunks.

    Raises:
        ValueError: if there are more stages or chunks than layers.
    """
    if costs.chunks > 1:
        return best_chunks(costs).bounds
    stages, layers = len(costs.counts), len(costs.work.layers.names)
    return partition(layers, stages, costs.micro_batches, costs.compute, costs.communicate).bounds


def best_chunks(costs: StageCosts) -> Partition:
    """
    Return the fastest division of all layers into chunks.

    Args:
        costs: costs of stages that have `costs.chunks` chunks each; the last stages may have one less.

    Raises:
        ValueError: if there are more chunks than layers.
    """
    stages, layers = len(costs.counts), len(costs.work.layers.names)
    tried: dict[tuple[int, ...], float] = {}

    def seconds(bounds: tuple[int, ...]) -> float:
        if bounds not in tried:
            tried[bounds] = seconds_of_chunks(costs, bounds)
        return tried[bounds]

    for count in rounds(stages, costs.chunks):
        if comb(layers - 1, count - 1) <= FEW:
            for begins in itertools.combinations(range(1, layers), count - 1):
                seconds((0, *begins, layers))
            continue
        times = costs.micro_batches * costs.chunks
        here = partition(layers, count, times, costs.compute, costs.communicate).bounds
        while (nearby := min(_moved(here), key=seconds, default=here)) and seconds(nearby) < seconds(here):
            here = nearby
    if not tried:
        raise ValueError(f"{layers} layers cannot be divided among {stages} stages of {costs.chunks} chunks")
    best = min(tried, key=lambda bounds: (tried[bounds], bounds))
    return Partition(best, tried[best])


def seconds_of_chunks(costs: StageCosts, bounds: Sequence[int]) -> float:
    """Return the estimated seconds of a step with chunks that begin with the layers `bounds[:-1]`, of `bounds[-1]`."""
    stages = len(costs.counts)
    chunks = [costs.compute(at, *each) for at, each in enumerate(itertools.pairwise(bounds))]
    before = list(itertools.accumulate(chunks, initial=0.0))
    busy = [costs.micro_batches * sum(chunks[at::stages]) + before[at] for at in range(len(chunks))]
    links = link_seconds(costs, bounds, costs.work.crossings)
    busy += [costs.micro_batches * seconds + before[source + 1] for (source, _), seconds in links.items()]
    return max(busy) + sum(links.values())


def link_seconds(
    costs: StageCosts, bounds: Sequence[int], crossings: Iterable[Crossing]
) -> dict[tuple[int, int], float]:
    """Map pairs of stages to the seconds that one micro-batch of some values takes from the first to the second."""
    places = places_of_layers(bounds, len(costs.counts))
    links = defaultdict[tuple[int, int], float](float)
    for crossing in crossings:
        source = places[crossing.made]
        for target in {places[layer] for layer in crossing.used} - {source}:
            links[source, target] += costs.crossing(crossing, source, target)
    return links


def _moved(bounds: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the divisions that differ in one begin, moved anywhere between its neighbours."""
    for index in range(1, len(bounds) - 1):
        for begin in range(bounds[index - 1] + 1, bounds[index + 1]):
            if begin != bounds[index]:
                yield *bounds[:index], begin, *bounds[index + 1 :]
