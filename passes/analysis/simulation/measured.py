"""
What a rank measured of a step, beside what is predicted of its class.

A program starts on each channel what its IR has there, in that order. So the traffic of a rank and of its class are
paired in order, where their kinds agree; and measured traffic gets the phase of its op, which the IR knows better than
the program's text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....ir.measured_steps import MeasuredRank, MeasuredTraffic
from .engine import TrafficRun
from .names import category
from .results import Simulation


@dataclass(frozen=True)
class PredictedVsMeasured:
    """
    A measured rank beside the class that it is of.

    Args:
        number: of the class.
        rank: the rank, its traffic with the phases of the ops.
        pairs: predicted and measured traffic, in the order of the rank's.
        apart: channels on which the two do not agree: with other numbers of collectives, or other kinds.
    """

    number: int
    rank: MeasuredRank
    pairs: tuple[tuple[TrafficRun, MeasuredTraffic], ...]
    apart: tuple[str, ...]


def beside(simulation: Simulation, rank: MeasuredRank) -> PredictedVsMeasured | None:
    """Pair a rank with what is predicted of it; None where the simulation has no such rank."""
    number = next((each.number for each in simulation.classes if rank.rank in each.ranks), None)
    if number is None:
        return None
    predicted: defaultdict[str, list[TrafficRun]] = defaultdict(list)
    for run in simulation.traffic(number):
        predicted[run.channel.name].append(run)
    measured: defaultdict[str, list[MeasuredTraffic]] = defaultdict(list)
    for each in rank.traffic:
        measured[each.channel].append(each)
    channels = dict.fromkeys((*predicted, *measured))
    apart = tuple(channel for channel in channels if not _agree(predicted[channel], measured[channel]))
    of_key = {
        each.key: run
        for channel in channels
        if channel not in apart
        for run, each in zip(predicted[channel], measured[channel], strict=True)
    }
    traffic = tuple(_with_phase(each, of_key) for each in rank.traffic)
    pairs = tuple((of_key[each.key], each) for each in traffic if each.key in of_key)
    return PredictedVsMeasured(number, replace(rank, traffic=traffic), pairs, apart)


def _agree(predicted: Sequence[TrafficRun], measured: Sequence[MeasuredTraffic]) -> bool:
    return [run.traffic.kind for run in predicted] == [each.kind for each in measured]


def _with_phase(each: MeasuredTraffic, of_key: Mapping[str, TrafficRun]) -> MeasuredTraffic:
    run = of_key.get(each.key)
    return each if run is None else replace(each, phase=category(run.traffic.op))
