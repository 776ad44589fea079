"""
Plot the quality of the best plan by the processor seconds of `search-plan`, which runs in one process.

    python benchmarks/search_budget.py [--budget SECONDS] [STEP@CLUSTER ...]

The clock starts with the pass, after the import of the step, and is read after each candidate's evaluation. A curve
begins at the first candidate that fits. Steps are simulated.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _report import arguments, parsed, plot, publish
from plan_quality import cluster_for, prepared_step
from xdsl.context import Context

from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.planning.summary import read_plan
from shardwright.passes.step.step_view import step_functions

CASES = (
    "gpt2-small@h100-8x8",
    "gpt2-small@hap-8x8",
    "gpt2-small@amp-het-cluster",
    "bert-sgmoe@hidup-2x4-10g",
    "vgg19@hidup-8x8",
    "resnet50@rtx4090-4x4",
)


class Clock(logging.Handler):
    """A log handler that records the processor seconds, the step and the name of each new best candidate."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.began = process_time()
        self.points: list[tuple[float, float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Record a message about a candidate: its number, the best step so far as text, and its name."""
        if not (isinstance(record.args, tuple) and len(record.args) >= 3 and isinstance(record.args[0], int)):
            return
        _, best, name, *_ = record.args
        number, _, unit = str(best).partition(" ")
        if unit == "ms" and (not self.points or float(number) * 1e-3 < self.points[-1][1]):
            self.points.append((process_time() - self.began, float(number) * 1e-3, str(name)))


@dataclass(frozen=True)
class Curve:
    """(processor seconds, step seconds, name) of each new best candidate, and the end of the search."""

    name: str
    points: tuple[tuple[float, float, str], ...]
    ended: float
    candidates: int

    def at(self, seconds: float) -> float | None:
        """Return the best step after `seconds` of search."""
        return min((step for when, step, _ in self.points if when <= seconds), default=None)


def curve_of(name: str, budget: float | None) -> Curve:
    """Run the search of one case."""
    step, _, cluster = name.rpartition("@")
    module = prepared_step(step).fused.clone()
    add_cluster(module, cluster_for(step, cluster))
    logger, clock = logging.getLogger("shardwright.plan"), Clock()
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(clock)
    try:
        passes = f"search-plan{{budget={budget}}}" if budget is not None else "search-plan"
        run_pipeline(Context(), module, passes, verify_each=False)
        ended = process_time() - clock.began
    finally:
        logger.removeHandler(clock)
        logger.setLevel(level)
    plan = read_plan(step_functions(module)[0])
    assert plan is not None
    return Curve(name, tuple(clock.points), ended, len(plan.candidates))


def row_of(curve: Curve) -> dict[str, Any]:
    """Return the best step after some seconds of search, relative to the best at the end."""
    best = curve.points[-1][1]
    after = {f"after {seconds} s": curve.at(seconds) for seconds in (2, 5, 10, 20, 40)}
    return {
        "case": curve.name,
        "first s": curve.points[0][0],
        **{name: step / best if step is not None else None for name, step in after.items()},
        "best ms": best * 1e3,
        "found after s": curve.points[-1][0],
        "ended after s": curve.ended,
        "candidates": curve.candidates,
        "plan": curve.points[-1][2],
        "curve": [list(point) for point in curve.points],
    }


def plot_curves(curves: Sequence[Curve]) -> None:
    """Plot the best step by processor seconds, relative to the best at the end, to `results/search_budget.png`."""
    with plot("search_budget", title="Best simulated step found during the search") as axes:
        for curve in curves:
            best = curve.points[-1][1]
            times = [when for when, _, _ in curve.points] + [curve.ended]
            axes.step(times, [step / best for _, step, _ in curve.points] + [1.0], where="post", label=curve.name)
        axes.set(xscale="log", xlabel="search, processor seconds", yscale="log", ylabel="best step / best at the end")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.grid(visible=True, which="both", linewidth=0.3)
        axes.legend(fontsize=7)


def main() -> None:
    """Print the table, and write JSON file and plot."""
    parser = arguments(__doc__)
    parser.add_argument("--budget", type=float, help="time limit per case (default: none)")
    parser.add_argument("cases", nargs="*", metavar="STEP@CLUSTER", default=CASES)
    options = parsed(parser, budget=1.0, cases=["gpt2-tiny@local-4"])
    curves = [curve_of(name, options.budget) for name in options.cases]
    publish("search_budget", [row_of(curve) for curve in curves], hidden=("curve",))
    plot_curves(curves)


if __name__ == "__main__":
    main()
