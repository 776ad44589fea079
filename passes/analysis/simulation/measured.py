"""
Compare the measurements of a rank with the prediction for its class.

A program starts its traffic on each channel in the order of its IR. Measured and predicted traffic are therefore paired
in order, if their kinds agree. Measured traffic gets the phase of its op, since the IR knows the phase better than the
program's text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....ir.measured_steps import MeasuredRank, MeasuredSteps, MeasuredTraffic, busiest
from .engine import TrafficRun
from .names import category
from .results import Simulation


@dataclass(frozen=True)
class PredictedVsMeasured:
    """
    The measurements of a rank and the prediction for its class.

    Args:
        number: number of the class.
        rank: the measured rank; its traffic has the phases of the ops.
        pairs: predicted and measured traffic, in the order of the measurements.
        apart: channels that cannot be paired, since their numbers or kinds of collectives differ.
    """

    number: int
    rank: MeasuredRank
    pairs: tuple[tuple[TrafficRun, MeasuredTraffic], ...]
    apart: tuple[str, ...]


class NotThisStepError(ValueError):
    """An error that reports measurements of another step than the simulated one, with the difference."""


def pairs_of(simulation: Simulation, measured: MeasuredSteps) -> list[PredictedVsMeasured]:
    """
    Return, for each stage, the measured rank that computes longest with its simulated class, in the step of median
    length.

    Raises:
        NotThisStepError: the measurements have other ranks, or other collectives or transfers.
    """
    ranks = sorted(rank.rank for rank in measured.middle)
    predicted = sorted(rank for each in simulation.classes for rank in each.ranks)
    if ranks != predicted:
        raise NotThisStepError(f"it has {len(ranks)} ranks, but the step has {len(predicted)}")
    compared = [beside(simulation, rank) for rank in busiest(measured.middle).values()]
    pairs = [each for each in compared if each is not None]
    if apart := next((each for each in pairs if each.apart), None):
        channel, rank = apart.apart[0], apart.rank
        sent = sum(each.channel == channel for each in rank.traffic)
        planned = sum(run.channel.name == channel for run in simulation.traffic(apart.number))
        raise NotThisStepError(
            f"rank {rank.rank} sent {sent} messages over {channel!r}, which differ from the {planned} of the step; "
            "measure the simulated plan"
        )
    return pairs


def beside(simulation: Simulation, rank: MeasuredRank) -> PredictedVsMeasured | None:
    """Pair the traffic of a rank with its prediction; return None if the simulation does not have the rank."""
    number = next((rank_class.number for rank_class in simulation.classes if rank.rank in rank_class.ranks), None)
    if number is None:
        return None
    predicted: defaultdict[str, list[TrafficRun]] = defaultdict(list)
    for run in simulation.traffic(number):
        predicted[run.channel.name].append(run)
    measured: defaultdict[str, list[MeasuredTraffic]] = defaultdict(list)
    for traffic_record in rank.traffic:
        measured[traffic_record.channel].append(traffic_record)
    channels = dict.fromkeys((*predicted, *measured))
    apart = tuple(channel for channel in channels if not _agree(predicted[channel], measured[channel]))
    of_key = {
        item.key: run
        for channel in channels
        if channel not in apart
        for run, item in zip(predicted[channel], measured[channel], strict=True)
    }
    traffic = tuple(_with_phase(item, of_key) for item in rank.traffic)
    pairs = tuple((of_key[item.key], item) for item in traffic if item.key in of_key)
    return PredictedVsMeasured(number, replace(rank, traffic=traffic), pairs, apart)


def _agree(predicted: Sequence[TrafficRun], measured: Sequence[MeasuredTraffic]) -> bool:
    return [run.traffic.kind for run in predicted] == [item.kind for item in measured]


def _with_phase(each: MeasuredTraffic, of_key: Mapping[str, TrafficRun]) -> MeasuredTraffic:
    run = of_key.get(each.key)
    return each if run is None else replace(each, phase=category(run.traffic.op))
