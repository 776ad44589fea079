"""Helpers shared by all benchmarks: tables on the screen, JSON files, and plots in the same folder."""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results" / ("quick" if "--quick" in sys.argv else "")
"""Folder of the results. A quick run writes to its own folder, since its figures mean nothing."""


def parsed(parser: argparse.ArgumentParser, **quick: object) -> argparse.Namespace:
    """
    Add `--quick` to the options, and parse the command line.

    Args:
        quick: defaults of the options in a quick run, which takes seconds and only shows that the script works.
    """
    parser.add_argument("--quick", action="store_true", help="a small run that takes seconds; its figures mean nothing")
    if "--quick" in sys.argv:
        parser.set_defaults(**quick)
    return parser.parse_args()


def given_data(options: argparse.Namespace, file: str) -> Path:
    """Return the folder that `--data` names. Without the option, print a message and exit with status 0."""
    if options.data is None:
        skip(f"pass --data DIR: a folder with {file}, which is not part of this project")
    return options.data


def skip(reason: object) -> NoReturn:
    """Exit with status 0, so that the scripts after this one run."""
    print(f"skipped: {reason}", file=sys.stderr)
    sys.exit(0)


def publish(name: str, rows: Sequence[Mapping[str, Any]], *, command: str, hidden: Collection[str] = ()) -> Path:
    """
    Print `rows` as a table and write them, with the machine and the command, to `results/NAME.json`.

    Args:
        hidden: columns that are written to the file but not printed.
    """
    table = Table(title=f"{name}  ({command})")
    columns = [column for column in rows[0] if column not in hidden]
    for column in columns:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        values = [row[column] for column in columns]
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values))
    Console(width=140).print(table)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": _cores()}
    path.write_text(json.dumps({"command": command, "machine": machine, "rows": list(rows)}, indent=2) + "\n")
    return path


def plot_bars(name: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], *, ylabel: str) -> None:
    """Write a stacked bar chart to `results/NAME.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    bottom = [0.0] * len(labels)
    for title, heights in series.items():
        axes.bar(labels, heights, bottom=bottom, label=title)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    axes.set_ylabel(ylabel)
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=120)
    pyplot.close(figure)


def plot_grouped(name: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], *, ylabel: str) -> None:
    """Write a grouped bar chart, with one bar for each series at each label, to `results/NAME.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(max(7, 0.8 * len(labels)), 4))
    width = 0.8 / len(series)
    for number, (title, heights) in enumerate(series.items()):
        places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(labels))]
        axes.bar(places, heights, width, label=title)
    axes.set_xticks(range(len(labels)), labels, rotation=20 if len(labels) > 5 else 0)
    axes.set_ylabel(ylabel)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=120)
    pyplot.close(figure)


def plot_intervals(
    name: str, labels: Sequence[str], middles: Sequence[float], bounds: Sequence[tuple[float, float]], *, xlabel: str
) -> None:
    """Write medians with their intervals, one row each, to `results/NAME.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 0.6 * len(labels) + 1.5))
    below = [m - low for m, (low, _) in zip(middles, bounds, strict=True)]
    above = [high - m for m, (_, high) in zip(middles, bounds, strict=True)]
    axes.errorbar(middles, range(len(labels)), xerr=[below, above], fmt="o", capsize=4)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel(xlabel)
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=120)
    pyplot.close(figure)


def plot_scatter(name: str, series: Mapping[str, Sequence[tuple[float, float]]], *, xlabel: str, ylabel: str) -> None:
    """Write a scatter plot with logarithmic axes and the diagonal to `results/NAME.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 5))
    for title, points in series.items():
        axes.scatter(*zip(*points, strict=True), s=12, label=title)
    values = [value for points in series.values() for point in points for value in point]
    axes.plot([min(values), max(values)], [min(values), max(values)], color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=120)
    pyplot.close(figure)


def plot_lines(name: str, series: Mapping[str, Sequence[float]], *, xlabel: str, ylabel: str) -> None:
    """Plot each series as a line, by the index of its values from 1, to `results/NAME.png`."""
    points = {title: list(enumerate(values, 1)) for title, values in series.items()}
    plot_curves(name, points, xlabel=xlabel, ylabel=ylabel)


def plot_curves(name: str, series: Mapping[str, Sequence[tuple[float, float]]], *, xlabel: str, ylabel: str) -> None:
    """Write a line through the points of each series to `results/NAME.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for title, points in series.items():
        axes.plot(*zip(*points, strict=True), label=title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=120)
    pyplot.close(figure)


def interval(ratios: Sequence[float], rounds: int = 2000) -> tuple[float, float]:
    """Return the 95 % bootstrap confidence interval of the median."""
    generator = random.Random(1)
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0))
