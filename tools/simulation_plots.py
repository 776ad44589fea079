"""Plots of simulated steps: the timeline of every stream, and the step time over a swept number."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ..passes.analysis.simulation.bars import bars_of
from ..passes.analysis.simulation.results import COMPUTE, Simulation
from ..passes.analysis.simulation.trace import class_name
from .cli_arguments import tool_error
from .simulation_tables import Point

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
