"""The results of a simulation, as tables for a terminal and as rows for JSON: times in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from ..ir.overlap import Overlap
from ..ir.overlap_table import COLUMNS, cells
from ..ir.units import bytes_text, seconds_text
from ..passes.analysis.simulation.bars import bars_of
from ..passes.analysis.simulation.critical_path import critical_path, seconds_by_op
from ..passes.analysis.simulation.held import HeldBytes
from ..passes.analysis.simulation.longest import longest_waiting, longest_waits, seconds_by_name
from ..passes.analysis.simulation.overlap_report import overlaps
from ..passes.analysis.simulation.results import COMPUTE, Simulation
from ..passes.analysis.simulation.trace import class_name
from .cli_arguments import tool_error


@dataclass(frozen=True)
class RanksRow:
    """
    The step of a class of equivalent ranks.

    Args:
        sent: bytes that each rank sends, by kind.
    """

    ranks: str
    compute: float
    waiting: float
    busy: Mapping[str, float]
    sent: Mapping[str, float]
    peak_bytes: float


@dataclass(frozen=True)
class OverlapRow:
    """The overlap of communication with computation, by phase and channel (`over`)."""

    ranks: str
    phase: str
    over: str
    overlap: Overlap

    def as_dict(self) -> dict[str, object]:
        """Return the row with the derived figures, for JSON."""
        figures = ("compute", "communication", "overlapped", "exposed", "ratio")
        found = {"ranks": self.ranks, "phase": self.phase, "over": self.over}
        return {**found, **{name: getattr(self.overlap, name) for name in figures}}


@dataclass(frozen=True)
class OpRow:
    """Seconds of an op, collective or transfer, with `*` in the place of layer numbers."""

    name: str
    seconds: float
    kind: str = ""


@dataclass(frozen=True)
class Point:
    """A value of a sweep, with its simulation or the error that prevented it."""

    value: float
    simulation: Simulation | None
    problem: str = ""

    @property
    def seconds(self) -> tuple[float, float, float] | None:
        """The seconds of the step, and the compute and waiting seconds of the ranks that compute longest."""
        if self.simulation is None:
            return None
        found = self.simulation
        busiest = max(found.classes, key=lambda each: found.compute_seconds(each.number)).number
        return found.seconds, found.compute_seconds(busiest), found.exposed_seconds(busiest)

    def as_dict(self) -> dict[str, object]:
        """Return the value with its times, for JSON."""
        times = self.seconds or (None, None, None)
        found = dict(zip(("step", "compute", "waiting"), times, strict=True))
        return {"value": self.value, **found, "problem": self.problem}


def rank_rows(simulation: Simulation) -> Iterator[RanksRow]:
    """Yield the row of each class of ranks."""
    held = HeldBytes(simulation)
    for each in simulation.classes:
        yield RanksRow(
            class_name(each),
            simulation.compute_seconds(each.number),
            simulation.exposed_seconds(each.number),
            dict(simulation.busy_seconds(each.number)),
            dict(simulation.sent_bytes(each.number)),
            held.peak(each),
        )


def overlap_rows(simulation: Simulation) -> Iterator[OverlapRow]:
    """Yield the overlap of communication, on the ranks of each stage that compute longest."""
    for stage in dict.fromkeys(each.stage for each in simulation.classes):
        ranks = simulation.busiest(stage)
        for (phase, channel), overlap in overlaps(simulation, ranks.number).items():
            yield OverlapRow(class_name(ranks), phase, channel, overlap)


def wait_rows(simulation: Simulation) -> list[OpRow]:
    """Return the ops that the ranks with the longest waits wait for, the longest first."""
    waits = longest_waits(simulation, longest_waiting(simulation).number)
    return [OpRow(name, seconds, kind) for (name, kind), seconds in waits]


def path_rows(simulation: Simulation) -> tuple[int, list[OpRow]]:
    """Return the number of ops and collectives on the critical path, and their rows, the longest first."""
    path = seconds_by_op(simulation, critical_path(simulation))
    return len(path), [OpRow(*row) for row in seconds_by_name(path)]


def step_record(simulation: Simulation) -> dict[str, object]:
    """Return the results of one step, for JSON."""
    return {
        "step": simulation.seconds,
        "ranks": [asdict(row) for row in rank_rows(simulation)],
        "overlap": [row.as_dict() for row in overlap_rows(simulation)],
        "waits": {
            "ranks": class_name(longest_waiting(simulation)),
            "ops": [asdict(row) for row in wait_rows(simulation)],
        },
        "critical_path": [{"name": row.name, "seconds": row.seconds} for row in path_rows(simulation)[1]],
    }


def sweep_record(what: str, points: Sequence[Point]) -> dict[str, object]:
    """Return the results of a sweep, for JSON."""
    return {"field": what.partition("=")[0], "points": [point.as_dict() for point in points]}


MOST_ROWS = 8
"""The number of longest ops and collectives that are listed."""


def tables(simulation: Simulation) -> Iterator[Table]:
    """Yield tables of the step's ranks, their overlap of communication, their longest waits, and the critical path."""
    yield _ranks(simulation)
    overlap = Table(*COLUMNS, title="overlap of communication and computation")
    for row in overlap_rows(simulation):
        overlap.add_row(row.ranks, row.phase, row.over, *cells(row.overlap))
    if overlap.row_count:
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


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def require_matplotlib() -> None:
    """Raise DiagnosticError if matplotlib is missing, which is better known before a long search or sweep."""
    try:
        import_module("matplotlib")
    except ImportError as error:
        raise tool_error(f"--plot needs matplotlib ({error}): pip install 'shardwright[plot]'") from error


_COLOURS = {
    "forward": "tab:blue", "backward": "tab:orange", "update": "tab:green", "all_reduce": "tab:red",
    "all_gather": "tab:purple", "reduce_scatter": "tab:brown", "all_to_all": "tab:pink", "transfer": "tab:gray",
}  # fmt: skip

_UNITS = {
    "bandwidth": "bytes/s", "memory_bandwidth": "bytes/s", "memory": "bytes", "flops": "FLOP/s",
    "alpha": "s", "latency": "s", "launch": "s", "overhead": "s",
}  # fmt: skip
"""Units of the numbers of a cluster, by a part of their path."""


def plot_timeline(simulation: Simulation, path: Path) -> None:
    """Plot the activity of the streams of each class of ranks over time, in milliseconds."""
    rows = [
        (f"{class_name(each)}: {stream}" if stream == COMPUTE else stream, bars)
        for each in simulation.classes
        for stream, bars in bars_of(simulation, each, label=lambda _: "").items()
    ]
    figure, axes = _figure(1.2 + 0.32 * len(rows))
    seen: dict[str, None] = {}
    for index, (_, bars) in enumerate(rows):
        for bar in bars:
            label = None if bar.kind in seen else bar.kind
            seen[bar.kind] = None
            width, left = (bar.end - bar.start) * 1e3, bar.start * 1e3
            axes.barh(index, width, left=left, height=0.8, color=_COLOURS[bar.kind], label=label)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_title(f"Simulated step: {simulation.seconds * 1e3:.4g} ms")
    axes.set_xlabel("time, ms")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.6 / len(rows) ** 0.5), ncols=5, fontsize="small")
    _save(figure, path)


def plot_points(what: str, points: Sequence[Point], path: Path) -> None:
    """Plot the step time and its compute time over the values of a sweep, with logarithmic axes."""
    shown = [(point.value, point.simulation) for point in points if point.simulation is not None]
    values = [value for value, _ in shown]
    busiest = [max(simulation.compute_seconds(each.number) for each in simulation.classes) for _, simulation in shown]
    figure, axes = _figure(4.0)
    axes.plot(values, [simulation.seconds for _, simulation in shown], marker="o", label="step")
    axes.plot(values, busiest, marker=".", linestyle="--", label="compute of the busiest rank")
    axes.set_xscale("log")
    axes.set_yscale("log")
    number = what.partition("=")[0]
    axes.set_title(f"Simulated step by {number}")
    unit = next((_UNITS[part] for part in number.split(".") if part in _UNITS), "")
    axes.set_xlabel(", ".join(filter(None, (number, unit))))
    axes.set_ylabel("time, s")
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend()
    _save(figure, path)


def _figure(height: float) -> tuple[Figure, Axes]:
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(9, height))


def _save(figure: Figure, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
