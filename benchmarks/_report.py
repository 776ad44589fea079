"""Helpers shared by all benchmarks: options, tables on the screen, JSON files, and plots in the same folder."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
"""Folder of the project."""

RESULTS = ROOT / "benchmarks" / "results" / ("quick" if "--quick" in sys.argv else "")
"""Folder of the results. A quick run writes to its own folder, since its figures mean nothing."""

# Scripts share generators of models and faults with the tests.
sys.path.insert(0, str(ROOT / "tests" / "support"))

Row = Mapping[str, Any]
"""A row of a table: values by column."""

Rows = list[dict[str, Any]]


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose `--help` shows the docstring of the script."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


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


def columns_of(rows: Sequence[Row], *names: str) -> dict[str, list[Any]]:
    """Return the values of columns, each as a series of a plot."""
    return {name: [row[name] for row in rows] for name in names}


def quiet() -> None:
    """Hide the warnings of Python and the messages of the library."""
    warnings.simplefilter("ignore")
    logging.getLogger("shardwright").setLevel(logging.ERROR)


def progress(row: dict[str, Any]) -> dict[str, Any]:
    """Print a row to standard error at once, since later rows may take minutes, and return it."""
    print(*(f"{key}: {value}" for key, value in row.items()), sep=", ", file=sys.stderr, flush=True)
    return row


def in_new_process(code: str, *words: object) -> Any:
    """Run Python code in a new process, with `words` in `sys.argv`, and return the JSON of its last line."""
    command = [sys.executable, "-c", code, *map(str, words)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def publish(name: str, rows: Sequence[Row], *, hidden: Collection[str] = ()) -> None:
    """
    Print `rows` as a table and write them, with the machine and the command, to `results/NAME.json`.

    Columns of lists and dicts, and `hidden` columns, are written to the file but not printed.
    """
    script = Path(sys.argv[0]).resolve()
    words = [str(script.relative_to(ROOT) if script.is_relative_to(ROOT) else script), *sys.argv[1:]]
    command = f"python {shlex.join(words)}"
    table = Table(title=f"{name}  ({command})")
    first = rows[0]
    columns = [name for name, value in first.items() if name not in hidden and not isinstance(value, list | dict)]
    for column in columns:
        table.add_column(column, justify="left" if isinstance(first[column], str) else "right")
    for row in rows:
        values = [row.get(column, "") for column in columns]
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values))
    Console(width=140).print(table)
    RESULTS.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": cores}
    content = {"command": command, "machine": machine, "rows": list(rows)}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


Section = tuple[Callable[[argparse.Namespace], Rows], Callable[[str, Rows], None] | None]
"""A function from the options of a script to the rows of a table, and a function that plots them by name."""


def publish_sections(
    script: str, sections: Mapping[str, Section], options: argparse.Namespace, *, hidden: Collection[str] = ()
) -> None:
    """Make, publish and plot the sections that `--only` names."""
    for name in options.only:
        make, plot_rows = sections[name]
        rows = make(options)
        publish(f"{script}_{name}", rows, hidden=hidden)
        if plot_rows is not None:
            plot_rows(f"{script}_{name}", rows)


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two marks of a page of the manual."""
    before, _, rest = page.read_text().partition(begin)
    page.write_text(f"{before}{begin}{text}{end}{rest.partition(end)[2]}")


def interval(ratios: Sequence[float], rounds: int = 2000) -> tuple[float, float]:
    """Return the 95 % bootstrap confidence interval of the median."""
    generator = random.Random(1)
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return the median of paired ratios, and the bounds of its interval, as columns of a row."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    low, high = interval(ratios)
    return {"ratio": statistics.median(ratios), "low": low, "high": high}


@contextmanager
def plot(name: str, width: float = 7, height: float = 4, panels: int = 1, *, title: str) -> Generator[Any, None, None]:
    """Yield the axes of a plot (a list of them for several panels), and write the plot to `results/NAME.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, panels, figsize=(width * panels, height))
    figure.suptitle(title)
    yield axes
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=120)
    pyplot.close(figure)


def plot_bars(
    name: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], *, title: str, ylabel: str
) -> None:
    """Write a stacked bar chart to `results/NAME.png`."""
    with plot(name, title=title) as axes:
        bottom = [0.0] * len(labels)
        for label, heights in series.items():
            axes.bar(labels, heights, bottom=bottom, label=label)
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        axes.set_ylabel(ylabel)
        axes.legend()


def plot_grouped(
    name: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], *, title: str, ylabel: str
) -> None:
    """Write a grouped bar chart, with one bar for each series at each label, to `results/NAME.png`."""
    with plot(name, width=max(7, 0.8 * len(labels)), title=title) as axes:
        width = 0.8 / len(series)
        for number, (label, heights) in enumerate(series.items()):
            places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(labels))]
            axes.bar(places, heights, width, label=label)
        axes.set_xticks(range(len(labels)), labels, rotation=20 if len(labels) > 5 else 0)
        axes.set_ylabel(ylabel)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)


def plot_ratios(name: str, rows: Sequence[Row], label: Callable[[Any], str], *, title: str, xlabel: str) -> None:
    """Write the ratio of each row with its interval to `results/NAME.png`."""
    with plot(name, height=0.6 * len(rows) + 1.8, title=title) as axes:
        middles = [row["ratio"] for row in rows]
        errors = [[row["ratio"] - row["low"] for row in rows], [row["high"] - row["ratio"] for row in rows]]
        axes.errorbar(middles, range(len(rows)), xerr=errors, fmt="o", capsize=4)
        axes.axvline(1.0, color="grey", linewidth=0.8)
        axes.set_yticks(range(len(rows)), list(map(label, rows)))
        axes.set_xlabel(xlabel)


def plot_scatter(
    name: str, series: Mapping[str, Sequence[tuple[float, float]]], *, title: str, xlabel: str, ylabel: str
) -> None:
    """Write a scatter plot with logarithmic axes and the diagonal to `results/NAME.png`."""
    with plot(name, 6, 5, title=title) as axes:
        for label, points in series.items():
            axes.scatter(*zip(*points, strict=True), s=12, label=label)
        values = [value for points in series.values() for point in points for value in point]
        axes.plot([min(values), max(values)], [min(values), max(values)], color="grey", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
        axes.legend()


def plot_curves(
    name: str, series: Mapping[str, Sequence[tuple[float, float]]], *, title: str, xlabel: str, ylabel: str
) -> None:
    """Write a line through the points of each series to `results/NAME.png`."""
    with plot(name, title=title) as axes:
        for label, points in series.items():
            axes.plot(*zip(*points, strict=True), label=label)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.legend()
