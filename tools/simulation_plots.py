"""Plots of simulated steps: the timeline of every stream, and the step time over a swept number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..passes.analysis.simulation.names import category
from ..passes.analysis.simulation.results import COMPUTE, RankClass, Simulation
from ..passes.analysis.simulation.trace import class_name
from .cli_arguments import tool_error
from .simulation_tables import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    rows = [row for each in simulation.classes for row in _rows(simulation, each)]
    figure, axes = _figure(1.2 + 0.32 * len(rows))
    seen: dict[str, None] = {}
    for index, (_, bars) in enumerate(rows):
        for kind, start, end in bars:
            label = None if kind in seen else kind
            seen[kind] = None
            axes.barh(index, (end - start) * 1e3, left=start * 1e3, height=0.8, color=_COLOURS[kind], label=label)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_title(f"Simulated step: {simulation.seconds * 1e3:.4g} ms")
    axes.set_xlabel("time, ms")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.6 / len(rows) ** 0.5), ncols=5, fontsize="small")
    _save(figure, path)


def _rows(simulation: Simulation, each: RankClass) -> Iterator[tuple[str, list[tuple[str, float, float]]]]:
    """Yield the streams of a class, each with its bars: kind, start, end."""
    computed = [(category(run.op), run.start, run.end) for run in simulation.ops(each.number)]
    yield f"{class_name(each)}: {COMPUTE}", list(_joined(computed))
    channels: dict[str, list[tuple[str, float, float]]] = {}
    for run in simulation.traffic(each.number):
        channels.setdefault(run.channel.name, []).append((run.traffic.kind, run.start, run.end))
    yield from channels.items()


def _joined(bars: Sequence[tuple[str, float, float]]) -> Iterator[tuple[str, float, float]]:
    """Join consecutive bars of the same kind, because a file with a bar for each op would be large."""
    pending: tuple[str, float, float] | None = None
    for kind, start, end in bars:
        if pending is not None and pending[0] == kind and start <= pending[2]:
            pending = (kind, pending[1], end)
            continue
        if pending is not None:
            yield pending
        pending = (kind, start, end)
    if pending is not None:
        yield pending


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
    try:
        import matplotlib
    except ImportError as error:
        raise tool_error(f"--plot needs matplotlib ({error})", "pip install 'shardwright[plot]'") from error

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(9, height))


def _save(figure: Figure, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
