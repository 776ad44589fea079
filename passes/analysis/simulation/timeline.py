"""
Predict how long a step takes: its simulation, as the compute stream of one rank sees it.

A device has a compute stream, and a communication stream for each group of axes. Ops use their streams in program
order. An op that computes takes its time on the compute stream, a collective blocks both streams, and a fragment takes
its time once for every part of its axis. `spmd.start` hands its collective to the communication stream and continues;
`spmd.wait` blocks the compute stream until this collective ends. Every stage of a pipeline runs its own ops and, in
place of its fragments, its schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ....dialects.spmd import StartOp
from ....ir.cluster import Cluster
from ....ir.collectives import CollectiveKind
from ...step.blocks import layer_of
from .network import TRANSFER
from .results import COMPUTE, Simulation
from .simulate import places_of, simulate


@dataclass(frozen=True)
class TimelineEvent:
    """One op or collective on one stream, in seconds from the start of the step; `layer` is its module."""

    name: str
    layer: str
    start: float
    end: float
    stream: str


@dataclass(frozen=True)
class Timeline:
    """
    The predicted timeline of one step, in seconds and bytes, on the ranks that compute longest.

    seconds                seconds from the first op to the last
    compute_seconds        seconds that the compute stream works
    communication_seconds  sum of the seconds of collectives
    exposed_seconds        seconds that the compute stream waits for collectives, transfers and other ranks
    collective_bytes       bytes that each rank sends, by kind of collective
    """

    seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    collective_bytes: Mapping[CollectiveKind, float]
    events: tuple[TimelineEvent, ...]


def predict(func: FuncOp, cluster: Cluster) -> Timeline:
    """
    Return the timeline of a step function without stages on `cluster`.

    Raises OpFailure if an op lacks a signature or a resharding lacks a collective.
    """
    return timeline(simulate(func, places_of(func, [cluster], cluster)), None)


def predict_pipeline(func: FuncOp, clusters: Sequence[Cluster], whole: Cluster) -> list[Timeline]:
    """
    Return the timelines of the stages of a function, from the begin of the step.

    Args:
        clusters: clusters of the stages, in order.
        whole: cluster of all ranks of the job, whose links connect the stages.

    Raises:
        OpFailure: an op lacks a signature, or a resharding lacks a collective.
    """
    simulation = simulate(func, places_of(func, clusters, whole))
    return [timeline(simulation, stage) for stage in range(len(clusters))]


def timeline(simulation: Simulation, stage: int | None) -> Timeline:
    """Return the timeline of a stage, from the begin of the step until the stage has ended."""
    number = simulation.busiest(stage).number
    computed = [
        TimelineEvent(_name(run.op), layer_of(run.op), run.start, run.end, COMPUTE) for run in simulation.ops(number)
    ]
    sent = [
        TimelineEvent(_name(run.traffic.op), layer_of(run.traffic.op), run.start, run.end, run.channel.name)
        for run in simulation.traffic(number)
        if run.traffic.kind != TRANSFER
    ]
    numbers = [rank_class.number for rank_class in simulation.classes if rank_class.stage == stage]
    ends = [entry.end for member in numbers for entry in simulation.execution.entries[member]]
    arrived = [run.end for member in numbers for run in simulation.traffic(member) if run.traffic.kind != TRANSFER]
    seconds, busy = max((*ends, *arrived), default=0.0), simulation.compute_seconds(number)
    talking = sum(event.end - event.start for event in sent)
    kinds = {CollectiveKind(k): v for k, v in simulation.sent_bytes(number).items() if k != TRANSFER}
    events = sorted((*computed, *sent), key=lambda event: event.start)
    return Timeline(seconds, busy, talking, seconds - busy, kinds, tuple(events))


def longest(timelines: Sequence[Timeline]) -> Mapping[str, float]:
    """
    Return the seconds of a step and how the stage that computes most spends them: computing, or waiting for
    collectives, transfers and other stages. Idle ranks do not count.
    """
    working = [timeline for timeline in timelines if timeline.compute_seconds] or timelines
    seconds = max(timeline.seconds for timeline in working)
    busiest = max(timeline.compute_seconds for timeline in timelines)
    return {"step": seconds, "compute": busiest, "exposed": seconds - busiest}


def _name(op: Operation) -> str:
    if isinstance(op, StartOp):
        return f"{op.collective} of {len(op.args)}"
    hint = op.results[0].name_hint if op.results else None
    return f"{op.name} %{hint}" if hint else op.name
