"""
Report how much communication of a simulated step overlaps with computation (`ir.overlap`).

Source: HiDup 6.6, table 4.
"""

from __future__ import annotations

from collections import defaultdict

from ....ir.overlap import Overlaps, Span, overlap_of
from .names import category
from .results import Simulation


def overlaps(simulation: Simulation, number: int) -> Overlaps:
    """Return the overlap for a class of ranks, by phase and channel; traffic has the phase of its op."""
    computed: defaultdict[str, list[Span]] = defaultdict(list)
    for run in simulation.ops(number):
        computed[category(run.op)].append((run.start, run.end))
    sent = ((category(run.traffic.op), run.channel.name, (run.start, run.end)) for run in simulation.traffic(number))
    return overlap_of(computed, sent)
