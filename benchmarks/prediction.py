"""
Compare predicted with measured step times.

    python benchmarks/prediction.py [--ranks 2 4] [--only "mlp-small x2" ...] [--until plan] [--quick]
    sudo python benchmarks/prediction.py --emulated

The study has fifty plans of five model families on two and on four gloo processes of this machine. With `--emulated` it
has fifty plans at each of two sites, whose hosts are network namespaces with limited links. Each phase keeps its
results in `results/prediction-SITE` and skips existing ones, so a run can be stopped and resumed:

- `profile` writes a cluster file per mesh by `shardwright profile`.
- `plan` writes the IR and the program of every plan. Searched plans are searched again once all ops are measured: the
  fastest of the best plans of several kinds in a short run is taken, as in `shardwright plan --measure`.
- `measure`, three times in turn: measure the ops of all plans by `shardwright profile --ops-of`, and the steps of every
  plan in a separate job. A step ends when its last rank is done.
- `predict` writes the tables and the plot: predicted step by back end, correlation, errors, whether the fastest plan is
  predicted to be the fastest, and the searched plan compared with the fastest of its group.

Turns are ignored if other processes of the machine worked meanwhile and enough quiet turns remain.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from _figures_of_fit import median_error, pearson, regret
from _prediction_cases import EMULATED_GROUPS, GROUPS
from _prediction_ranks import Emulated, Local, Site
from _prediction_study import BACK_ENDS, PHASES, Study
from _report import RESULTS, Row, Rows, arguments, parsed, plot_scatter, publish

LOCAL = "local"
EMULATED: dict[str, Site] = {
    "two-hosts": Emulated(rates=("200mbit", "200mbit"), ranks_each=2),
    "three-hosts": Emulated(rates=("500mbit", "500mbit", "100mbit"), ranks_each=1),
}
SLOW_LINKS = 240.0
"""Seconds of profiling for a slow network, which needs half a second for a large bucket."""
ONE_MESH = 108.0
"""Seconds of measuring ops if all fifty plans are for one mesh."""

SEARCHED = "searched"
"""Name of the searched plan of a group."""

GOOD_CHOICE = 0.05
"""Largest excess over the fastest step, as a share of it, for a choice that counts as good."""


def study(name: str, options: argparse.Namespace) -> Study:
    """Return the study of a site, with the groups that the options select."""
    site, groups = (Local(), GROUPS) if name == LOCAL else (EMULATED[name], EMULATED_GROUPS[name])
    wanted = [group for group in groups if options.only is None or group.name in options.only]
    chosen = [group for group in wanted if options.ranks is None or group.ranks in options.ranks]
    folder = RESULTS / f"prediction-{name}"
    if options.quick:
        return Study(site, chosen, folder, 3.0, 15.0, 15.0)
    if name == LOCAL:
        return Study(site, chosen, folder)
    return Study(site, chosen, folder, profile_seconds=SLOW_LINKS, table_seconds=ONE_MESH)


def summary(rows: Sequence[Row], back_end: str) -> dict[str, Any]:
    """Return how well the predictions of a back end fit all rows."""
    measured, predicted = ([row[f"{name} ms"] for row in rows] for name in ("measured", back_end))
    regrets: list[float] = []
    for group in dict.fromkeys(row["group"] for row in rows):
        own = [row for row in rows if row["group"] == group]
        regrets.append(regret(*({row["plan"]: row[f"{n} ms"] for row in own} for n in (back_end, "measured"))))
    row = {"back end": back_end, "plans": len(rows), "spread": max(measured) / min(measured)}
    row |= {"Pearson": pearson(predicted, measured), "median error": median_error(predicted, measured)}
    good = sum(value <= GOOD_CHOICE for value in regrets)
    return row | {"good choices": good, "groups": len(regrets), "worst choice": max(regrets)}


def choices(rows: Sequence[Row]) -> Rows:
    """Compare the searched plan of each group with the fastest plan of the group, by measured steps."""
    table = Rows()
    for group in dict.fromkeys(row["group"] for row in rows):
        measured = {row["plan"]: row["measured ms"] for row in rows if row["group"] == group}
        fastest = min(measured, key=measured.__getitem__)
        excess = measured[SEARCHED] / measured[fastest] - 1.0
        row = {"group": group, "searched ms": measured[SEARCHED], "dp ms": measured["dp"], "fastest": fastest}
        row |= {"fastest ms": measured[fastest], "slower by": excess, "good": excess <= GOOD_CHOICE}
        table.append(row)
    return table


def report(name: str, rows: Sequence[Row]) -> None:
    """Publish the tables and the plot of a site."""
    publish(f"prediction-{name}-plans", rows)
    publish(f"prediction-{name}-choices", choices(rows))
    publish(f"prediction-{name}", [summary(rows, back_end) for back_end in BACK_ENDS])
    points = {name: [(row["measured ms"], row[f"{name} ms"]) for row in rows] for name in BACK_ENDS}
    title = f"Predicted and measured steps, {name}"
    plot_scatter(f"prediction-{name}", points, title=title, xlabel="measured step, ms", ylabel="predicted step, ms")


def main() -> None:
    """Run the phases, print the tables, and write JSON files and plot."""
    parser = arguments(__doc__)
    parser.add_argument("--emulated", action="store_true", help="hosts with limited links; needs root and iproute2")
    parser.add_argument("--ranks", type=int, nargs="+", help="only groups on these numbers of processes")
    parser.add_argument("--only", nargs="+", metavar="GROUP", help="only these groups, by their names in the tables")
    parser.add_argument("--until", choices=PHASES, default=PHASES[-1], help="last phase to run")
    options = parsed(parser, only=["mlp-small x2"], until="plan")
    for name in EMULATED if options.emulated else (LOCAL,):
        if rows := study(name, options).run(options.until):
            report(name, rows)


if __name__ == "__main__":
    main()
