"""What a step consists of beyond its bound, in one line."""

from __future__ import annotations

from collections import defaultdict

from ..analysis.simulation.network import TRANSFER
from ..analysis.simulation.results import Simulation

_SHOWN = 0.005
"""The part of a step from which on a wait is named."""


def time_of_busiest(simulation: Simulation) -> str:
    """
    Return what the rank that computes longest does in a step: `computes 73.1% of the step, waits 20.2% for stages and
    6.7% for collectives`.

    What it waits for at the end, when its own work is done, is what other ranks still do.
    """
    busiest = max((each.number for each in simulation.classes), key=simulation.compute_seconds)
    step = simulation.seconds
    waits = defaultdict[str, float](float)
    for traffic, seconds in simulation.waited(busiest).items():
        waits["stages" if traffic.kind == TRANSFER else "collectives"] += seconds / step
    computes = simulation.compute_seconds(busiest) / step
    waits["others to end"] = 1.0 - computes - sum(waits.values())
    named = [f"{part:.1%} for {what}" for what, part in waits.items() if part >= _SHOWN]
    return f"computes {computes:.1%} of the step" + (f", waits {' and '.join(named)}" if named else "")
