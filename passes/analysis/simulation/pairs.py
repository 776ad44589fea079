"""The bytes that each rank of a job sends to each other rank in a simulated step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ....dialects.spmd import CollectiveOp, StartOp
from ....ir.cluster import PHASES, sent_bytes
from ....ir.collectives import CollectiveKind
from ..durations import CollectiveWork, communication_of
from .network import Traffic
from .places import Place
from .results import Simulation


def bytes_between(simulation: Simulation) -> NDArray[np.float64]:
    """
    Return the bytes from each rank of the job (rows) to each other rank (columns).

    Collectives pass parts around a ring of the ranks of a group in their order, as the simulator assumes; an all-to-all
    sends directly. A hierarchical collective does so in each of its phases. Parts count with the size of the largest.
    """
    count = 1 + max(rank for each in simulation.classes for rank in each.ranks)
    sent = np.zeros((count, count))
    # Runs of the same traffic differ by the classes that take part; its groups are all counted at once.
    for traffic, _ in dict.fromkeys((run.traffic, run.part) for run in simulation.execution.traffic):
        for sender, receiver, size in traffic.edges or _edges(traffic):
            sent[sender, receiver] += size
    return sent


def _edges(traffic: Traffic) -> Iterator[tuple[int, int, float]]:
    op, place = traffic.op, traffic.ends[0].place
    if not isinstance(op, CollectiveOp | StartOp):
        return
    mesh = place.cluster.mesh
    for phase in _phases(communication_of(op, mesh), place):
        size = sent_bytes(phase.kind, mesh.parts(phase.axes), phase.whole_bytes)
        for group in mesh.groups(phase.axes):
            ranks = [place.ranks[rank] for rank in group]
            if phase.kind is CollectiveKind.ALL_TO_ALL:
                share = size / max(len(ranks) - 1, 1)
                yield from ((a, b, share) for a in ranks for b in ranks if a != b)
            else:
                yield from ((a, b, size) for a, b in place.ring(ranks) if a != b)


def _phases(work: CollectiveWork, place: Place) -> Iterator[CollectiveWork]:
    """Yield a collective as flat collectives: itself, or the phases of a hierarchical one."""
    if work.method != "hierarchical" or len(work.axes) < 2:
        yield work
        return
    part = 1.0 / place.cluster.mesh.parts(work.axes[-1:])
    for kind, is_across in PHASES[work.kind]:
        axes = work.axes[:-1] if is_across else work.axes[-1:]
        share = part if is_across and work.kind is not CollectiveKind.ALL_TO_ALL else 1.0
        yield CollectiveWork(kind, axes, work.whole_bytes * share)
