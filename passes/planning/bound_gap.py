"""Say in one line how the busiest rank spends a step, so that a reader sees where the gap to the bound comes from."""

from __future__ import annotations

from collections import defaultdict

from ..analysis.simulation.network import TRANSFER
from ..analysis.simulation.results import Simulation

_SHOWN = 0.005
"""A wait is named if it takes at least this part of the step."""


def time_of_busiest(simulation: Simulation) -> str:
    """
    Return how the rank that computes longest spends a step: `computes 73.1% of the step, waits 20.2% for stages and
    6.7% for collectives`.

    Time after its own work is a wait for `others to end`.
    """
    busiest = max((rank_class.number for rank_class in simulation.classes), key=simulation.compute_seconds)
    step = simulation.seconds
    waits = defaultdict[str, float](float)
    for traffic, seconds in simulation.waited(busiest).items():
        waits["stages" if traffic.kind == TRANSFER else "collectives"] += seconds / step
    computes = simulation.compute_seconds(busiest) / step
    waits["others to end"] = 1.0 - computes - sum(waits.values())
    named = [f"{part:.1%} for {awaited}" for awaited, part in waits.items() if part >= _SHOWN]
    return f"computes {computes:.1%} of the step" + (f", waits {' and '.join(named)}" if named else "")
