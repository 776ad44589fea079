"""The results of a simulation as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from ..ir.overlap_table import COLUMNS, cells
from ..ir.units import bytes_text, seconds_text
from ..passes.analysis.simulation.critical_path import critical_path, seconds_by_op
from ..passes.analysis.simulation.held import HeldBytes
from ..passes.analysis.simulation.longest import longest_waits, seconds_by_name
from ..passes.analysis.simulation.overlap_report import overlaps
from ..passes.analysis.simulation.results import Simulation
from ..passes.analysis.simulation.trace import class_name

MOST_ROWS = 8
"""The number of longest ops and collectives that are listed."""


@dataclass(frozen=True)
class Point:
    """A value of a sweep, with its simulation or the error that prevented it."""

    value: float
    simulation: Simulation | None
    problem: str = ""


def tables(simulation: Simulation) -> Iterator[Table]:
    """Yield tables of the step's ranks, their overlap of communication, their longest waits, and the critical path."""
    yield _ranks(simulation)
    if (overlap := _overlap(simulation)).row_count:
        yield overlap
    if (waits := _waits(simulation)).row_count:
        yield waits
    yield _path(simulation)


def _ranks(simulation: Simulation) -> Table:
    title = f"one step: {seconds_text(simulation.seconds)}"
    table = Table("ranks", "compute", "waiting", "busy", "sent", "peak memory", title=title)
    held = HeldBytes(simulation)
    for each in simulation.classes:
        busy = simulation.busy_seconds(each.number)
        parts = (f"{stream} {seconds / (simulation.seconds or 1.0):.0%}" for stream, seconds in busy.items())
        sent = simulation.sent_bytes(each.number)
        table.add_row(
            class_name(each),
            seconds_text(simulation.compute_seconds(each.number)),
            seconds_text(simulation.exposed_seconds(each.number)),
            "\n".join(parts),
            "\n".join(f"{kind} {bytes_text(size)}" for kind, size in sent.items()),
            bytes_text(held.peak(each)),
        )
    return table


def _overlap(simulation: Simulation) -> Table:
    """Return a table of the overlap of communication, on the ranks of each stage that compute longest."""
    table = Table(*COLUMNS, title="overlap of communication and computation")
    for stage in dict.fromkeys(each.stage for each in simulation.classes):
        ranks = simulation.busiest(stage)
        for (phase, channel), overlap in overlaps(simulation, ranks.number).items():
            table.add_row(class_name(ranks), phase, channel, *cells(overlap))
    return table


def _waits(simulation: Simulation) -> Table:
    """Return a table of the longest waits, on the ranks that wait longest."""
    waiting = max(simulation.classes, key=lambda each: sum(simulation.waited(each.number).values()))
    table = Table("collective or transfer", "kind", "waited for", title=f"{class_name(waiting)} wait for")
    for (name, kind), seconds in longest_waits(simulation, waiting.number)[:MOST_ROWS]:
        table.add_row(name, kind, seconds_text(seconds))
    return table


def _path(simulation: Simulation) -> Table:
    """Return a table of the ops and collectives on the critical path."""
    path = seconds_by_op(simulation, critical_path(simulation))
    table = Table("op", "seconds", "of the step", title=f"the critical path: {len(path)} ops and collectives")
    for name, seconds in seconds_by_name(path)[:MOST_ROWS]:
        table.add_row(name, seconds_text(seconds), f"{seconds / simulation.seconds:.1%}")
    return table


def points_table(what: str, points: Sequence[Point]) -> Table:
    """Return a table of the points of a sweep."""
    path = what.partition("=")[0]
    table = Table(path, "step", "compute", "waiting", title=f"sweep of {path}")
    for point in points:
        if point.simulation is None:
            table.add_row(f"{point.value:.4g}", point.problem.splitlines()[0], "", "")
            continue
        simulation = point.simulation
        busiest = max(simulation.classes, key=lambda each: simulation.compute_seconds(each.number)).number
        times = (simulation.seconds, simulation.compute_seconds(busiest), simulation.exposed_seconds(busiest))
        table.add_row(f"{point.value:.4g}", *map(seconds_text, times))
    return table
