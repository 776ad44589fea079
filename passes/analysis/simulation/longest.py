"""The longest waits of a class of ranks, and the longest parts of the critical path, by the names of their ops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from xdsl.ir import Operation

from .names import numbered, op_name
from .results import RankClass, Simulation


def longest_waiting(simulation: Simulation) -> RankClass:
    """Return the class of ranks that waits longest."""
    return max(simulation.classes, key=lambda each: sum(simulation.waited(each.number).values()))


def longest_waits(simulation: Simulation, number: int) -> list[tuple[tuple[str, str], float]]:
    """Return the seconds that a class waits for each collective or transfer, by name and kind, longest first."""
    seconds = defaultdict[tuple[str, str], float](float)
    for traffic, waited in simulation.waited(number).items():
        seconds[op_name(traffic.op), traffic.kind] += waited
    return sorted(seconds.items(), key=lambda row: -row[1])


def seconds_by_name(path: Mapping[Operation, float]) -> list[tuple[str, float]]:
    """Return the seconds of the ops of a path by name, longest first; equal layers share a name."""
    seconds = defaultdict[str, float](float)
    for op, spent in path.items():
        seconds[numbered(op)] += spent
    return sorted(seconds.items(), key=lambda row: -row[1])
