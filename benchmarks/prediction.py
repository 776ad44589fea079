"""
Predicted against measured steps.

    python benchmarks/prediction.py [--ranks 2 4] [--only "mlp-small x2" ...] [--until plan] [--quick]
    sudo python benchmarks/prediction.py --emulated

Fifty plans of five model families on two and on four gloo processes of this machine; with `--emulated`, fifty at each
of two sites whose hosts are network namespaces with limited links. Each phase keeps its results in
`results/prediction-SITE` and does not repeat what is there, so a run can be ended and taken up again:

profile   a cluster file per mesh, by `shardwright profile`
plan      the IR and the program of every plan. Those that are searched for, again, once the ops of all are measured:
          of the best of several kinds the one that is the fastest in a short run, as by `shardwright plan --measure`
measure   three times in turn: the ops of all plans, by `shardwright profile --ops-of`; and steps of every plan in a job
          of its own, of a step the time until its last rank is done
predict   the tables and the plot: predicted step by back end, correlation, errors, and whether the best was chosen;
          and how the plan that is searched for the profiled cluster does beside the fastest of its group, as measured

Where enough turns are so, only those count in which no other process of the machine worked.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import _netns
from _figures_of_fit import median_error, pearson, regret
from _prediction_cases import EMULATED_GROUPS, GROUPS
from _prediction_sites import Emulated, Local, Site
from _prediction_study import BACK_ENDS, PHASES, Study
from _report import RESULTS, parsed, plot_scatter, publish, skip

LOCAL = "local"
EMULATED: dict[str, Site] = {
    "two-hosts": Emulated(rates=("200mbit", "200mbit"), ranks_each=2),
    "three-hosts": Emulated(rates=("500mbit", "500mbit", "100mbit"), ranks_each=1),
}
SLOW_LINKS = 240.0
"""The seconds for which a network is profiled on which a large bucket takes half a second."""
ONE_MESH = 108.0
"""The seconds for which ops are measured where all fifty plans are for one mesh."""

SEARCHED = "searched"
"""The plan that was searched for, among those of a group."""

GOOD_CHOICE = 0.05
"""By how much of the best step the chosen plan may be slower."""


def study(name: str, options: argparse.Namespace) -> Study:
    """The study of a site, of the groups that are asked for."""
    site, groups = (Local(), GROUPS) if name == LOCAL else (EMULATED[name], EMULATED_GROUPS[name])
    wanted = [group for group in groups if options.only is None or group.name in options.only]
    chosen = [group for group in wanted if options.ranks is None or group.ranks in options.ranks]
    folder = RESULTS / f"prediction-{name}"
    if options.quick:
        return Study(site, chosen, folder, 3.0, 15.0, 15.0)
    if name == LOCAL:
        return Study(site, chosen, folder)
    return Study(site, chosen, folder, profile_seconds=SLOW_LINKS, table_seconds=ONE_MESH)


def summary(rows: Sequence[Mapping[str, Any]], back_end: str) -> dict[str, Any]:
    """How well a back end does on all rows."""
    measured, predicted = ([row[f"{name} ms"] for row in rows] for name in ("measured", back_end))
    lost = [choice_regret(rows, group, back_end) for group in dict.fromkeys(row["group"] for row in rows)]
    return {
        "back end": back_end,
        "plans": len(rows),
        "spread": max(measured) / min(measured),
        "Pearson": pearson(predicted, measured),
        "median error": median_error(predicted, measured),
        "good choices": sum(each <= GOOD_CHOICE for each in lost),
        "groups": len(lost),
        "worst choice": max(lost),
    }


def choice_regret(rows: Sequence[Mapping[str, Any]], group: str, back_end: str) -> float:
    """By how much the plan that a back end prefers in a group is slower than the fastest."""
    mine = [row for row in rows if row["group"] == group]
    measured, predicted = ({row["plan"]: row[f"{name} ms"] for row in mine} for name in ("measured", back_end))
    return regret(predicted, measured)


def choices(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By group, how the plan that `search-plan` chose for the profiled cluster does beside the others, as measured."""
    found: list[dict[str, Any]] = []
    for group in dict.fromkeys(row["group"] for row in rows):
        measured = {row["plan"]: row["measured ms"] for row in rows if row["group"] == group}
        fastest = min(measured, key=measured.__getitem__)
        lost = measured[SEARCHED] / measured[fastest] - 1.0
        found.append(
            {
                "group": group,
                "searched ms": measured[SEARCHED],
                "dp ms": measured["dp"],
                "fastest": fastest,
                "fastest ms": measured[fastest],
                "slower by": lost,
                "good": lost <= GOOD_CHOICE,
            }
        )
    return found


def report(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print and write the tables and the plot of a site."""
    command = "python benchmarks/prediction.py" + ("" if name == LOCAL else " --emulated")
    publish(f"prediction-{name}-plans", rows, command=command)
    publish(f"prediction-{name}-choices", choices(rows), command=command)
    publish(f"prediction-{name}", [summary(rows, back_end) for back_end in BACK_ENDS], command=command)
    points = {each: [(row["measured ms"], row[f"{each} ms"]) for row in rows] for each in BACK_ENDS}
    plot_scatter(f"prediction-{name}", points, xlabel="measured step, ms", ylabel="predicted step, ms")


def main() -> None:
    """Go through the phases, print the tables and write JSON and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulated", action="store_true", help="hosts with limited links; needs root and iproute2")
    parser.add_argument("--ranks", type=int, nargs="+", help="groups on so many processes")
    parser.add_argument("--only", nargs="+", metavar="GROUP", help="these groups, as in the tables")
    parser.add_argument("--until", choices=PHASES, default=PHASES[-1], help="the last phase")
    options = parsed(parser, only=["mlp-small x2"], until="plan")
    try:
        for name in EMULATED if options.emulated else (LOCAL,):
            if rows := study(name, options).run(options.until):
                report(name, rows)
    except _netns.Unavailable as error:
        skip(error)


if __name__ == "__main__":
    main()
