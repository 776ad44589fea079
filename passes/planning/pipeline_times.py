"""
Estimate the step time of a pipeline before any strategy is found.

A stage of T seconds for each of B micro-batches, with all layers before it taking F seconds for one, ends no earlier
than B * T + F, and its gradients are complete before the backward passes of the stages before it:

    max over stages of  max(B * (T + A) + F,  B * (T + A) + F / 3 + max(G - 2/3 * T, 0))

Each layer of a stage is replicated over some axes of the stage's mesh and split over the others, as makes B * A + G the
least. Split layers reduce activations, which takes A seconds in one micro-batch. Replicated layers reduce gradients,
which takes G seconds, and the last backward pass hides a part of them. Transfers count as in `chunk_bounds.py`; a tied
weight and its gradient pass once, when no micro-batch is left to hide them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import prod

from xdsl.ir import SSAValue

from ...ir.cluster import Cluster
from ...ir.collectives import CollectiveKind
from ..stages.chunk_bounds import link_seconds
from ..stages.stage_costs import StageCosts

_REDUCED = 4
"""Number of reductions of the activations of a split layer, forward and backward (Megatron)."""

_FORWARD = 1 / 3
"""Fraction of a layer's compute that is forward."""


@dataclass(frozen=True)
class PipelineWork:
    """
    The values of a step that decide how long its pipelines communicate.

    Args:
        rows: rows of the batch.
        parameters: bytes of the parameters of each layer that has any.
        once: values that pass between stages once in a step, and not once for each micro-batch.
    """

    rows: int
    parameters: Mapping[int, int]
    once: AbstractSet[SSAValue]


def pipeline_seconds(work: PipelineWork, costs: StageCosts, bounds: Sequence[int], stages: Sequence[Cluster]) -> float:
    """
    Return the estimated seconds of a step of a pipeline.

    Args:
        bounds: the first layer of each chunk, then the number of layers.
        stages: the cluster of each stage.
    """
    parts = costs.micro_batches
    once = [crossing for crossing in costs.work.crossings if crossing.value in work.once]
    often = [crossing for crossing in costs.work.crossings if crossing.value not in work.once]
    passed = sorted(crossing.bytes for crossing in often if not crossing.backward)
    activations = passed[len(passed) // 2] / work.rows if passed else 0.0
    chunks = list(itertools.pairwise(bounds))
    computed = [costs.compute(at, *chunk) for at, chunk in enumerate(chunks)]
    before = list(itertools.accumulate(computed, initial=0.0))
    links = link_seconds(costs, bounds, often)
    ends = [parts * seconds + before[source + 1] for (source, _), seconds in links.items()]
    for stage, cluster in enumerate(stages):
        layers = [layer for chunk in chunks[stage :: len(stages)] for layer in range(*chunk)]
        sizes = [work.parameters[layer] for layer in layers if layer in work.parameters]
        gradients, reduced = _reductions(cluster, sizes, activations, work.rows, parts)
        turn = sum(computed[stage :: len(stages)])
        exposed = max(gradients - (1 - _FORWARD) * turn, 0.0)
        ends.append(parts * turn + reduced + _FORWARD * before[stage] + exposed)
        for chunk in range(stage, len(chunks), len(stages)):
            ends.append(parts * sum(computed[chunk :: len(stages)]) + reduced + before[chunk])
    exposed_links = link_seconds(replace(costs, micro_batches=1), bounds, once)
    return max(ends) + sum(links.values()) + sum(exposed_links.values())


def _reductions(
    cluster: Cluster, sizes: Sequence[int], activations: float, rows: int, parts: int
) -> tuple[float, float]:
    """
    Return the seconds of reducing the gradients of a stage, and the seconds of reducing its activations.

    Args:
        sizes: bytes of the parameters of each layer.
        activations: bytes of a layer's activations for one row.
    """
    axes = [axis for axis in cluster.mesh.spatial if axis.size > 1]
    subsets = itertools.chain.from_iterable(itertools.combinations(axes, count) for count in range(len(axes) + 1))
    ways: list[tuple[tuple[str, ...], int, float]] = []
    for replicated in subsets:
        over, split = (tuple(axis.name for axis in axes if (axis in replicated) == held) for held in (True, False))
        copies = prod(axis.size for axis in replicated)
        if copies <= max(rows // parts, 1):
            size = activations * rows / parts / copies
            blocking = parts * _REDUCED * cluster.collective_seconds(CollectiveKind.ALL_REDUCE, split, size)
            ways.append((over, cluster.mesh.device_count // copies, blocking if split else 0.0))

    def seconds(size: int) -> tuple[float, float]:
        both = [
            (cluster.collective_seconds(CollectiveKind.ALL_REDUCE, over, size / among) if over else 0.0, blocking)
            for over, among, blocking in ways
        ]
        return min(both, key=sum)

    layers = [(times, *seconds(size)) for size, times in Counter(sizes).items()]
    return sum(times * gradients for times, gradients, _ in layers), sum(times * spent for times, _, spent in layers)
