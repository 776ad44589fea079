"""
How long a step is predicted to take: its simulation, as the compute stream of one rank sees it.

A device has a compute stream, and a communication stream for each group of axes. Ops take their streams in program
order: an op that computes takes its time on the compute stream; a collective holds up both; a fragment takes its time
once for every part of its axis; `spmd.start` hands its collective to the communication stream and goes on, and
`spmd.wait` holds up the compute stream until that collective is over. Every stage of a pipeline goes through its own
ops and, in the place of its fragments, through its schedule.
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

    seconds                from the first op to the last
    compute_seconds        how long the compute stream works
    communication_seconds  how long collectives run, summed
    exposed_seconds        how long the compute stream waits for collectives, transfers and other ranks
    collective_bytes       by kind of collective, what each rank sends
    """

    seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    collective_bytes: Mapping[CollectiveKind, float]
    events: tuple[TimelineEvent, ...]


def predict(func: FuncOp, cluster: Cluster) -> Timeline:
    """
    The timeline of a step function without stages on `cluster`.

    OpFailure where an op has no signature, or a resharding no collective yet.
    """
    return timeline(simulate(func, places_of(func, [cluster], cluster)), None)


def predict_pipeline(func: FuncOp, clusters: Sequence[Cluster], whole: Cluster) -> list[Timeline]:
    """
    The timelines of the stages of a function, from the begin of the step.

    Args:
        clusters: of the stages, in order.
        whole: of all ranks of the job, whose links lead from stage to stage.

    Raises:
        OpFailure: an op without a signature, or a resharding without a collective.
    """
    simulation = simulate(func, places_of(func, clusters, whole))
    return [timeline(simulation, stage) for stage in range(len(clusters))]


def timeline(simulation: Simulation, stage: int | None) -> Timeline:
    """A stage's part of a simulation, from the begin of the step until that stage has ended."""
    number = simulation.busiest(stage).number
    computed = [
        TimelineEvent(_name(run.op), layer_of(run.op), run.start, run.end, COMPUTE) for run in simulation.ops(number)
    ]
    sent = [
        TimelineEvent(_name(run.traffic.op), layer_of(run.traffic.op), run.start, run.end, run.channel.name)
        for run in simulation.traffic(number)
        if run.traffic.kind != TRANSFER
    ]
    numbers = [each.number for each in simulation.classes if each.stage == stage]
    ends = [entry.end for each in numbers for entry in simulation.execution.entries[each]]
    arrived = [run.end for each in numbers for run in simulation.traffic(each) if run.traffic.kind != TRANSFER]
    seconds, busy = max((*ends, *arrived), default=0.0), simulation.compute_seconds(number)
    talking = sum(event.end - event.start for event in sent)
    kinds = {CollectiveKind(k): v for k, v in simulation.sent_bytes(number).items() if k != TRANSFER}
    events = sorted((*computed, *sent), key=lambda event: event.start)
    return Timeline(seconds, busy, talking, seconds - busy, kinds, tuple(events))


def longest(timelines: Sequence[Timeline]) -> Mapping[str, float]:
    """
    The seconds of a step and how they are spent: computing, on the stage that computes most, and waiting for
    collectives, transfers and other stages there. Idle ranks do not count.
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
