"""Random pipelines as pure data: stages of one or more chunks, and the times of fragments and transfers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from random import Random

from shardwright.passes.stages.estimate import PipelineTimes
from shardwright.passes.stages.schedules import Delivery, FragmentKind, PipelineShape, Work


def works_of(shape: PipelineShape) -> list[Work]:
    """Return all fragments, except the fragment for weights of the first chunk of the first stage."""
    return [
        Work(f"{kind}{stage}.{chunk}", stage, kind, chunk)
        for stage in range(shape.stages)
        for chunk in range(shape.chunks)
        for kind in FragmentKind
        if stage or chunk or kind is not FragmentKind.WEIGHTS
    ]


def deliveries_of(shape: PipelineShape) -> list[Delivery]:
    """Return the transfers: each chunk sends to the next in forward, and to the previous in backward."""
    places = [(stage, chunk) for chunk in range(shape.chunks) for stage in range(shape.stages)]
    deliveries: list[Delivery] = []
    for (stage, chunk), (other, later) in pairwise(places):
        here, there = f"{stage}.{chunk}", f"{other}.{later}"
        users = f"forward{there}", f"weights{there}"
        deliveries.append(Delivery(f"h{here}", f"forward{here}", other, users))
        deliveries.append(Delivery(f"g{there}", f"backward{there}", stage, (f"backward{here}", f"weights{here}")))
    return deliveries


def timed(shape: PipelineShape, seconds: Mapping[FragmentKind, float], crossing: float = 0.0) -> PipelineTimes:
    """Return a pipeline whose fragments take `seconds` by kind; backward of chunk 0 of stage 0 includes the weights."""
    works = works_of(shape)
    runs = {work.label: seconds[work.kind] for work in works}
    runs["backward0.0"] += seconds[FragmentKind.WEIGHTS]
    deliveries = deliveries_of(shape)
    return PipelineTimes(
        tuple(works), tuple(deliveries), shape.parts, runs, {each.label: crossing for each in deliveries}
    )


def timed_at_random(draw: Random, shape: PipelineShape) -> PipelineTimes:
    """Return a pipeline with a random time for each fragment and transfer."""
    works, deliveries = tuple(works_of(shape)), tuple(deliveries_of(shape))
    slow = draw.choice((0.0, 0.1, 0.5, 1.0))
    runs = {work.label: draw.uniform(0.5, 2.0) for work in works}
    crossing = {each.label: slow * draw.uniform(0.5, 1.5) for each in deliveries}
    return PipelineTimes(works, deliveries, shape.parts, runs, crossing)
