"""
How much of a simulated step's communication runs beside computation: `ir.overlap` of the compute stream of a rank.

Source: HiDup 6.6, table 4.
"""

from __future__ import annotations

from collections import defaultdict

from ....ir.overlap import Overlaps, Span, overlap_of
from .names import category
from .results import Simulation


def overlaps(simulation: Simulation, number: int) -> Overlaps:
    """Of a class of ranks, the overlap by phase and channel; the phase of traffic is that of what is sent."""
    computed: defaultdict[str, list[Span]] = defaultdict(list)
    for run in simulation.ops(number):
        computed[category(run.op)].append((run.start, run.end))
    sent = ((category(run.traffic.op), run.channel.name, (run.start, run.end)) for run in simulation.traffic(number))
    return overlap_of(computed, sent)
