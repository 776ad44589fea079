"""
Plot the quality of the best plan by the processor seconds of `search-plan`, which runs in one process.

    python benchmarks/search_budget.py [--budget SECONDS] [STEP@CLUSTER ...]

The clock starts with the pass, after the import of the step, and is read after each candidate's evaluation. A curve
begins at the first candidate that fits. Steps are simulated.
"""

from __future__ import annotations

import logging
import os
from time import process_time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _report import Rows, arguments, parsed, plot, publish
from _steps import after, planned
from plan_quality import cluster_for, prepared_step

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


def row_of(name: str, budget: float | None) -> dict[str, Any]:
    """Run the search of one case, and return the best step after some seconds, relative to the best at the end."""
    step, _, cluster = name.rpartition("@")
    module = planned(prepared_step(step).fused, cluster_for(step, cluster))
    logger, clock = logging.getLogger("shardwright.plan"), Clock()
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(clock)
    try:
        after(module, f"search-plan{{budget={budget}}}" if budget is not None else "search-plan")
        ended = process_time() - clock.began
    finally:
        logger.removeHandler(clock)
        logger.setLevel(level)
    plan = read_plan(step_functions(module)[0])
    assert plan is not None
    found, best, chosen = clock.points[-1]
    row: dict[str, Any] = {"case": name, "first s": clock.points[0][0]}
    for seconds in (2, 5, 10, 20, 40):
        known = min((step for when, step, _ in clock.points if when <= seconds), default=None)
        row[f"after {seconds} s"] = known / best if known is not None else None
    row |= {"best ms": best * 1e3, "found after s": found, "ended after s": ended, "candidates": len(plan.candidates)}
    return row | {"plan": chosen, "curve": [list(point) for point in clock.points]}


def plot_curves(rows: Rows) -> None:
    """Plot the best step by processor seconds, relative to the best at the end, to `results/search_budget.png`."""
    with plot("search_budget", title="Best simulated step found during the search") as axes:
        for row in rows:
            best = row["best ms"] * 1e-3
            times = [when for when, _, _ in row["curve"]] + [row["ended after s"]]
            axes.step(times, [step / best for _, step, _ in row["curve"]] + [1.0], where="post", label=row["case"])
        axes.set(xscale="log", xlabel="search, processor seconds", yscale="log", ylabel="best step / best at the end")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.grid(visible=True, which="both", linewidth=0.3)
        axes.legend(fontsize=7)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--budget", type=float, help="time limit per case (default: none)")
    parser.add_argument("cases", nargs="*", metavar="STEP@CLUSTER", default=CASES)
    options = parsed(parser, budget=1.0, cases=["gpt2-tiny@local-4"])
    rows = [row_of(name, options.budget) for name in options.cases]
    publish("search_budget", rows)
    plot_curves(rows)


if __name__ == "__main__":
    main()
