"""
Where the chunks of stages begin, for stages of several chunks.

With B micro-batches, a stage that computes T seconds for one of them in a chunk and its later ones is done no earlier
than

    B * T  +  the seconds of all chunks before that one

as forward must come to it, and backward go back from it. So it is with a link that is busy for N seconds instead of
T, for both go on at once; what comes before it includes the first chunk that sends. A step takes about the most of
these, and what links carry of one micro-batch. What a stage sends itself costs nothing, so the two ends of a skip
connection, and both uses of a tied weight, are best in chunks of one stage. The last round through the stages may end
before the last of them: two stages can have three chunks, as 0, 1, 0.

Of few ways all are tried. Of many, those around the best division into chunks of about equal seconds
(`partition`), one begin being moved at a time, until none is faster.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import comb

from .divide import places_of_layers
from .partition import Partition, partition
from .stage_costs import StageCosts

FEW = 2000
"""Up to how many divisions are all tried."""


def rounds(stages: int, chunks: int) -> range:
    """How many chunks stages may have together, of which none has more than `chunks`, and the first so many."""
    return range(stages * (chunks - 1) + 1, stages * chunks + 1)


def best_bounds(costs: StageCosts) -> tuple[int, ...]:
    """
    Return the bounds of the fastest division of all layers into stages, each of `costs.chunks` chunks.

    Raises:
        ValueError: there are more stages or chunks than layers.
    """
    if costs.chunks > 1:
        return best_chunks(costs).bounds
    stages, layers = len(costs.counts), len(costs.layers.names)
    return partition(layers, stages, costs.micro_batches, costs.compute, costs.communicate).bounds


def best_chunks(costs: StageCosts) -> Partition:
    """
    The fastest division of all layers into chunks.

    Args:
        costs: of stages that have `costs.chunks` chunks each, or, of the last ones, one less.

    Raises:
        ValueError: there are more chunks than layers.
    """
    stages, layers = len(costs.counts), len(costs.layers.names)
    known: dict[tuple[int, ...], float] = {}

    def seconds(bounds: tuple[int, ...]) -> float:
        if bounds not in known:
            known[bounds] = seconds_of_chunks(costs, bounds)
        return known[bounds]

    for count in rounds(stages, costs.chunks):
        if comb(layers - 1, count - 1) <= FEW:
            for begins in itertools.combinations(range(1, layers), count - 1):
                seconds((0, *begins, layers))
            continue
        times = costs.micro_batches * costs.chunks
        here = partition(layers, count, times, costs.compute, costs.communicate).bounds
        while (nearby := min(_moved(here), key=seconds, default=here)) and seconds(nearby) < seconds(here):
            here = nearby
    if not known:
        raise ValueError(f"{layers} layers cannot be divided among {stages} stages of {costs.chunks} chunks")
    best = min(known, key=lambda bounds: (known[bounds], bounds))
    return Partition(best, known[best])


def seconds_of_chunks(costs: StageCosts, bounds: Sequence[int]) -> float:
    """About how long a step takes whose chunks begin with these layers; the last bound is the number of layers."""
    stages = len(costs.counts)
    places = places_of_layers(bounds, stages)
    chunks = [costs.compute(at, *each) for at, each in enumerate(itertools.pairwise(bounds))]
    before = list(itertools.accumulate(chunks, initial=0.0))
    busy = [costs.micro_batches * sum(chunks[at::stages]) + before[at] for at in range(len(chunks))]
    links = defaultdict[tuple[int, int], float](float)
    for each in costs.crossings:
        source = places[each.made]
        for target in {places[layer] for layer in each.used} - {source}:
            links[source, target] += costs.crossing(each, source, target)
    busy += [costs.micro_batches * seconds + before[source + 1] for (source, _), seconds in links.items()]
    return max(busy) + sum(links.values())


def _moved(bounds: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The divisions with one begin moved to anywhere between its neighbours."""
    for index in range(1, len(bounds) - 1):
        for begin in range(bounds[index - 1] + 1, bounds[index + 1]):
            if begin != bounds[index]:
                yield *bounds[:index], begin, *bounds[index + 1 :]
