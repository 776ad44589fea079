"""The results of a simulation as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from ..ir.overlap_table import COLUMNS, cells
from ..ir.units import bytes_text, seconds_text
from ..passes.analysis.simulation.longest import longest_waiting
from ..passes.analysis.simulation.results import Simulation
from ..passes.analysis.simulation.trace import class_name
from .simulation_rows import Point, overlap_rows, path_rows, rank_rows, wait_rows

MOST_ROWS = 8
"""The number of longest ops and collectives that are listed."""


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
    for row in rank_rows(simulation):
        parts = (f"{stream} {seconds / (simulation.seconds or 1.0):.0%}" for stream, seconds in row.busy.items())
        table.add_row(
            row.ranks,
            seconds_text(row.compute),
            seconds_text(row.waiting),
            "\n".join(parts),
            "\n".join(f"{kind} {bytes_text(size)}" for kind, size in row.sent.items()),
            bytes_text(row.peak_bytes),
        )
    return table


def _overlap(simulation: Simulation) -> Table:
    table = Table(*COLUMNS, title="overlap of communication and computation")
    for row in overlap_rows(simulation):
        table.add_row(row.ranks, row.phase, row.over, *cells(row.overlap))
    return table


def _waits(simulation: Simulation) -> Table:
    """Return a table of the longest waits, on the ranks that wait longest."""
    title = f"{class_name(longest_waiting(simulation))} wait for"
    table = Table("collective or transfer", "kind", "waited for", title=title)
    for row in wait_rows(simulation)[:MOST_ROWS]:
        table.add_row(row.name, row.kind, seconds_text(row.seconds))
    return table


def _path(simulation: Simulation) -> Table:
    """Return a table of the ops and collectives on the critical path."""
    count, rows = path_rows(simulation)
    table = Table("op", "seconds", "of the step", title=f"the critical path: {count} ops and collectives")
    for row in rows[:MOST_ROWS]:
        table.add_row(row.name, seconds_text(row.seconds), f"{row.seconds / simulation.seconds:.1%}")
    return table


def points_table(what: str, points: Sequence[Point]) -> Table:
    """Return a table of the points of a sweep."""
    path = what.partition("=")[0]
    table = Table(path, "step", "compute", "waiting", title=f"sweep of {path}")
    for point in points:
        times = point.seconds
        cells = map(seconds_text, times) if times is not None else (point.problem.splitlines()[0], "", "")
        table.add_row(f"{point.value:.4g}", *cells)
    return table
