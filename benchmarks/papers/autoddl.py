"""
Simulate the evaluation of AutoDDL ("AutoDDL: Automatic Distributed Deep Learning with Near-Optimal Bandwidth Cost",
Chen et al.): its figures 7 to 10, and its table 3.

    python benchmarks/papers/autoddl.py [--settings NAME ...]
    python benchmarks/papers/autoddl.py --only {dense,search} ...

Each setting of figures 9 and 10 and of table 3 has its own table, which compares `search-plan` (`auto`) with plans by
hand and with the optimum of AutoDDL's objective (`autoddl_plans.py`). The summary and the plots use the results of all
settings that have been run so far. `dense` prints the shardings of figure 7, and `search` compares AutoDDL's searches
as in figure 8 (`referee.py` compares all algorithms).

`sent` is the time that the network of the busiest rank is busy. `serial` is `sent` plus computation: the step if
nothing overlapped, as AutoDDL's model has it. `ideal` is computation alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _report import RESULTS, Rows, arguments, parsed, plot, plot_grouped, progress, publish, quiet
from autoddl_plans import Bench, Outcome, Setting, gpt, small_vgg, vgg
from referee import budgets

from shardwright.dialects import train
from shardwright.dialects.placed import sharding_of
from shardwright.passes.step.step_view import step_views

WIDTH, HEADS = 8192, 64

SETTINGS: dict[str, tuple[Setting, float | None, float | None]] = {
    "quick": (small_vgg(), None, None),
    "vgg-daint-16": (vgg(16, 1, 128), 3.0, 10.0),
    "vgg-daint-32": (vgg(32, 1, 256), 8.8, 18.0),
    "vgg-daint-64": (vgg(64, 1, 512), 17.7, 29.0),
    "vgg-cloud-4": (vgg(2, 4, 128), 71.5, 84.7),
    "vgg-cloud-8": (vgg(2, 8, 256), 63.5, 77.7),
    "gpt-daint-64": (gpt(64, 1, 1024, (8, WIDTH, HEADS)), 12.0, 23.9),
    "gpt-daint-128": (gpt(128, 1, 1024, (20, WIDTH, HEADS)), 36.1, 46.4),
    "gpt-daint-256": (gpt(256, 1, 1024, (44, WIDTH, HEADS)), 31.1, 35.3),
    "gpt-cloud-small": (gpt(2, 16, 2048, (24, 1024, 16)), 0.0, 0.0),
    "gpt-cloud-large": (gpt(2, 16, 2048, (28, 4096, 32)), 10.0, 21.6),
    "gpt-wide-64": (gpt(64, 1, 512, (20, WIDTH, HEADS), stages=2), 100 * (1 - 335 / 533), None),
    "gpt-deep-64": (gpt(64, 1, 512, (36, 4096, 32), stages=2), 100 * (1 - 443 / 710), None),
    "gpt-deep-128": (gpt(128, 1, 1024, (36, 4096, 32), stages=2), 100 * (1 - 508 / 807), None),
}
"""
The settings of figures 9 and 10 and of table 3, and a small one.

The numbers are the paper's reductions of the step and of communication, in per cent, relative to its best baseline.
"""

IN_PAPER = ("data parallel", "Megatron", "Summa")
"""The baselines of the paper; it leaves out Summa for VGG (5.1.1)."""

OURS = ("AutoDDL's objective", "auto")

COLUMNS = ("name", "step ms", "sent ms", "exposed ms", "serial ms", "GB", "planning s", "least serial ms", "why none")


def rows_of(name: str) -> Rows:
    """Return a row for each kind of plan of a setting: the fastest of its kind."""
    bench, outcomes = Bench(SETTINGS[name][0]), dict[str, list[Outcome | str]]()
    for hand in bench.by_hand():
        outcome = bench.best_of(hand)
        told = outcome if isinstance(outcome, str) else f"{1e3 * outcome.seconds:.5g} ms, {outcome.name}"
        progress({"plan": hand.family, "name": hand.name, "outcome": told})
        outcomes.setdefault(hand.family, []).append(outcome)
    rows = [_row(family, found) for family, found in outcomes.items()]
    parts = next((_parts(row["name"]) for row in rows if row["plan"] == "Megatron"), 1)
    rows.append(_row(OURS[0], [bench.autoddl(parts) or "does not fit"]))
    return [*rows, _row(OURS[1], [bench.auto()])]


def _row(plan: str, outcomes: Sequence[Outcome | str]) -> dict[str, Any]:
    """Return the row of the fastest outcome, with the least serial time of all; or why there is no outcome."""
    found = [outcome for outcome in outcomes if isinstance(outcome, Outcome)]
    if not found:
        return progress({"plan": plan} | dict.fromkeys(COLUMNS, "") | {"name": "-", "why none": outcomes[-1]})
    serial = {outcome.name: 1e3 * (outcome.seconds - outcome.exposed + outcome.sent) for outcome in found}
    best = min(found, key=lambda outcome: outcome.seconds)
    row = {"plan": plan, "name": best.name, "step ms": 1e3 * best.seconds, "sent ms": 1e3 * best.sent}
    row |= {"exposed ms": 1e3 * best.exposed, "serial ms": serial[best.name], "GB": best.peak_bytes / 1e9}
    row |= {"planning s": best.planning, "least serial ms": min(serial.values()), "why none": ""}
    return progress(row)


def _parts(name: str) -> int:
    """Return the number of micro-batches in the name of a plan."""
    *_, last = name.split(", ")
    return int(last.removesuffix(" micro-batches")) if last.endswith(" micro-batches") else 1


def known_rows() -> dict[str, Rows]:
    """Return the rows of all settings that have results."""
    files = {name: RESULTS / f"autoddl_{name}.json" for name in SETTINGS}
    return {name: json.loads(file.read_text())["rows"] for name, file in files.items() if file.exists()}


def summary(known: dict[str, Rows]) -> Rows:
    """Return a row for each setting: the paper's best baseline, `auto`, and reductions in per cent."""
    rows = Rows()
    for name, of_setting in known.items():
        found = {row["plan"]: row for row in of_setting if row["step ms"] != ""}
        auto, by_sum = found["auto"], found.get(OURS[0], found["auto"])
        setting, of_step, of_sent = SETTINGS[name]
        plans = IN_PAPER[:2] if setting.is_vgg else IN_PAPER
        best = min((found[plan] for plan in plans if plan in found), key=lambda row: row["step ms"], default=None)
        others = [row["step ms"] for plan, row in found.items() if plan != "auto"]
        row: dict[str, Any] = {"setting": name, "best": best["plan"] if best else "-"}
        row |= {"best ms": best["step ms"] if best else "", "auto ms": auto["step ms"], "chosen": auto["name"]}
        row |= {"auto over all": auto["step ms"] / min(others) if others else ""}
        for column, ours in (("step ms", auto), ("sent ms", auto), ("least serial ms", by_sum)):
            least = min((found[plan][column] for plan in plans if plan in found), default=None)
            title = column.removeprefix("least ").removesuffix(" ms")
            against = best[column] if best and column == "sent ms" else least
            row[f"{title} -%"] = 100 * (1 - ours[column] / against) if against else ""
        row["ideal -%"] = 100 * (1 - (best["step ms"] - best["exposed ms"]) / best["step ms"]) if best else ""
        row |= {"paper, step -%": of_step, "paper, sent -%": of_sent}
        rows.append(row)
    return rows


def plot_summary(rows: Rows) -> None:
    """Plot the reductions of steps with and without overlap, and the paper's reductions."""
    if not (told := [row for row in rows if row["best"] != "-"]):
        return
    told = [row for row in told if row["paper, step -%"] is not None] or told
    series = {
        "step, auto": [row["step -%"] for row in told],
        "step if nothing overlapped, AutoDDL's objective": [row["serial -%"] for row in told],
        "step, paper": [row["paper, step -%"] or 0.0 for row in told],
    }
    names = [row["setting"] for row in told]
    plot_grouped("autoddl_summary", names, series, title="AutoDDL, figures 9 and 10, table 3", ylabel="reduction, %")


def plot_scaling(known: dict[str, Rows]) -> None:
    """Plot the steps of figure 9 by nodes, and the ideal: the computation of `auto` alone."""
    kinds = [kind for kind in ("vgg", "gpt") if any(name.startswith(f"{kind}-daint") for name in known)]
    if not kinds:
        return
    with plot("autoddl_scaling", panels=len(kinds), title="AutoDDL, figure 9: weak scaling on Piz Daint") as axes:
        for panel, kind in zip(axes if len(kinds) > 1 else [axes], kinds, strict=True):
            names = [name for name in known if name.startswith(f"{kind}-daint")]
            lines: dict[str, list[tuple[int, float]]] = {}
            for name in names:
                nodes = SETTINGS[name][0].hosts
                for row in known[name]:
                    if row["step ms"] != "":
                        lines.setdefault(row["plan"], []).append((nodes, row["step ms"]))
                        if row["plan"] == "auto":
                            ideal = row["step ms"] - row["exposed ms"]
                            lines.setdefault("ideal (computation alone)", []).append((nodes, ideal))
            for label, points in lines.items():
                style = "k--" if label.startswith("ideal") else ".-"
                panel.plot(*zip(*points, strict=True), style, label=label)
            panel.set(xscale="log", yscale="log", xlabel="nodes", ylabel="simulated step, ms", title=kind)
            panel.legend(fontsize=7)


def dense(name: str) -> Rows:
    """Return the shardings of VGG's dense matrices, and the number of copies of each (figure 7)."""
    bench = Bench(SETTINGS[name][0])
    rows = Rows()
    for plan, outcome in (("auto", bench.auto()), (OURS[0], bench.autoddl(1))):
        assert outcome is not None
        for view, value in ((view, value) for view, _ in step_views(outcome.module) for value in view.inputs):
            if value.role == train.PARAM and re.fullmatch(r"classifier.*weight", value.name):
                sharding = sharding_of(value.argument)
                mesh = " x ".join(f"{axis.name}={axis.size}" for axis in view.mesh.spatial)
                copies = view.mesh.device_count // view.mesh.parts(axis for dim in sharding.dims for axis in dim.axes)
                row = {"plan": plan, "name": outcome.name, "matrix": value.name, "mesh": mesh}
                rows.append(row | {"sharding": str(sharding), "copies": copies})
    return rows


def search(most: int, seconds: float) -> Rows:
    """Return the costs of AutoDDL's searches by budget, relative to the optimum (figure 8)."""
    rows = budgets(("eliminate", "random", "metropolis", "coordinate-descent"), seconds, most)
    optimum = {row["setting"]: row["own cost ms"] for row in rows if row["algorithm"] == "eliminate"}
    for row in rows:
        row["over optimum"] = row["own cost ms"] / optimum[row["setting"]] if row["own cost ms"] != "" else ""
    return rows


def run_settings(names: Sequence[str]) -> None:
    """Compare the plans of each setting, then print the summary and write the plots."""
    for name in names:
        publish(f"autoddl_{name}", rows_of(name))
    known = known_rows()
    publish("autoddl_summary", rows := summary(known))
    plot_summary(rows)
    plot_scaling(known)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--settings", nargs="*", choices=tuple(SETTINGS), default=tuple(SETTINGS)[1:])
    parser.add_argument("--only", nargs="+", choices=("settings", "dense", "search"))
    parser.add_argument("--most", type=int, default=1024, help="largest budget of `search`")
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit of one search")
    options = parsed(parser, settings=["quick"], only=["settings", "search"], most=1, seconds=5.0)
    quiet()
    only = options.only or ("settings", "dense", "search")
    if "settings" in only:
        run_settings(options.settings)
    if "dense" in only:
        publish("autoddl_dense", dense("vgg-daint-32"))
    if "search" in only:
        publish("autoddl_search", search(options.most, options.seconds))


if __name__ == "__main__":
    main()
