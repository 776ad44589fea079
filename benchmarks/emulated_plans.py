"""
Compare the chosen plan with plans that a person would write, measured on emulated clusters.

    sudo python benchmarks/emulated_plans.py [--pairs 7] [--only NAME ...] [--device FILE]
    sudo python benchmarks/emulated_plans.py --slow-rank [--pairs 7] [--only NAME ...] [--device FILE]

Three clusters are groups of hosts with unequal links, which are network namespaces (`_netns.py`). In the fourth cluster
one of four ranks on one host computes 50 times slower. `--slow-rank` takes six steps on such a host with a rank that is
two or four times slower: `gain` is the measured step with even shares over the chosen plan's, and `of most` is its
share of the gain of a step that only computes. A plan by hand that gives the chosen program is left out.

A `finalist` is a plan that `shardwright plan --measure 4` would run beside the chosen plan. `measured` is the fastest
of these four plans in the steps of the table, and `measured, ratio` is the fastest plan by hand over it.

Each rank emulates a slower device (`Paced` in `_emulated_ranks.py`), whose cluster file comes from short measurements.
The programs of a case live in the same processes and take their steps in random order. `ratio` is the median of paired
ratios to the chosen plan, which runs twice, as a control. `others` is the number of cores that other processes used.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import _netns
from _emulated_cases import CASES, SLOW_RANK, Case, Measured, cluster_of
from _plain_plans import PIPELINED, Plain, Prepared, Workshop, step_seconds
from _report import RESULTS, Rows, arguments, parsed, plot_ratios, progress, publish, ratio
from _sides import busy_seconds
from _steps import after, prepared
from plan_quality import TOLERANCE
from xdsl.utils.exceptions import DiagnosticException

from shardwright.api.compile import PlanOptions
from shardwright.api.finalists import compile_finalists
from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster, Device
from shardwright.ir.cluster_file import cluster_toml, load_cluster
from shardwright.ir.mesh import Axis, Mesh
from shardwright.lowering.codegen.emit_python import emit_python
from shardwright.passes.leave_idle import leave_idle
from shardwright.passes.planning.summary import read_plan
from shardwright.passes.step.step_view import step_functions

RANKS = Path(__file__).with_name("_emulated_ranks.py")
BURST = "16kb"
"""A link carries this much at once after a pause. It is small, so that the rate of the link always holds."""

MICRO_BATCHES = 4
CHOSEN, CONTROL, FINALIST = "chosen", "chosen (control)", "finalist"
MEASURED = 4
"""Number of plans of different kinds that `shardwright plan --measure` would run."""


@dataclass(frozen=True)
class Planned:
    """A plan with its program and the simulated seconds of its step."""

    name: str
    predicted: float
    program: str = field(repr=False)


def plans_by_hand(case: Case, cluster: Cluster) -> list[Plain]:
    own, count = cluster.mesh, case.ranks
    flat = Mesh((Axis("gpu", count),), own.name)
    grid = own if len(own.axes) == 2 else Mesh((Axis("outer", 2), Axis("inner", count // 2)), own.name)
    outer, inner = grid.names
    even = Plain("all", "dp", own, (("dp", own.names),))
    if case in SLOW_RANK:
        by_speed = replace(even, name="dp, shares by speed", after="balance-ratios")
        return [even, by_speed, _on_part(case.part, own.name)]
    before = f"partition-stages{{stages=2 micro_batches={MICRO_BATCHES}}},"
    pipelined = PIPELINED.format(parts=MICRO_BATCHES, schedule="1f1b")
    return [
        even,
        Plain("all", "zero3", own, (("zero3", own.names),)),
        Plain("all", "tp", own, (("tp", own.names),)),
        Plain("all", "tp inside dp", grid, (("dp", (outer,)), ("tp", (inner,)))),
        Plain("all", "pipeline of two stages", flat, (("dp", flat.names),), pipelined, before),
        *(_on_part(ranks, own.name) for ranks in (case.part, (0,))),
    ]


def _on_part(ranks: tuple[int, ...], name: str) -> Plain:
    mesh = Mesh((Axis("gpu", len(ranks)),), name)
    title = f"dp on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} alone"
    return Plain("part", title, mesh, (("dp", mesh.names),), ranks=ranks)


def planned_by_hand(step: TrainingStep, plan: Plain, cluster: Cluster) -> Planned:
    """Return the program of a plan by hand. Raises DiagnosticException or ValueError if the plan cannot be made."""
    module = prepared(step)
    finished = Workshop(Prepared(module, module, False, 0), cluster).program(plan)
    if plan.ranks is not None:
        leave_idle(finished, cluster, plan.ranks)
    after(finished, "finish")
    program = emit_python(finished, name=plan.name, step_spec=None, versions={})
    return Planned(plan.name, step_seconds(finished), program)


def planned(case: Case, cluster: Cluster) -> list[Planned]:
    """Return the plans that `--measure 4` runs, the chosen one first, and other plans by hand."""
    plans: list[Planned] = []
    for compiled in compile_finalists(case.step(), cluster, PlanOptions(), MEASURED, name=CHOSEN):
        summary = read_plan(step_functions(compiled.module)[0])
        assert summary is not None
        kind = FINALIST if plans else CHOSEN
        plans.append(Planned(f"{kind}: {summary.chosen}", step_seconds(compiled.module), compiled.program))
    for plan in plans_by_hand(case, cluster):
        try:
            by_hand = planned_by_hand(case.step(), plan, cluster)
        except (DiagnosticException, ValueError) as error:
            print(f"{case.name}: {plan.name} cannot be made: {error}", file=sys.stderr)
            continue
        if _are_same(by_hand, plans[0]):
            print(f"{case.name}: {plan.name} is the chosen plan", file=sys.stderr)
            continue
        plans.append(by_hand)
    return plans


def _are_same(one: Planned, other: Planned) -> bool:
    return abs(one.predicted / other.predicted - 1.0) < TOLERANCE


def _launch(case: Case, **request: Any) -> Any:
    """Run a task of `_emulated_ranks.py` on every rank of a case, and return the answer of rank 0."""
    rates = [f"{rate}mbit" if rate is not None else None for rate in case.rates]
    request["case"] = case.name
    return _netns.answers(os.fspath(RANKS), rates, request, case.ranks_each, burst=BURST, receiving=True)


def compare(case: Case, device: Device, pairs: int) -> tuple[Rows, dict[str, Any]]:
    """Plan and measure a case, and return a row for each plan, and the verdict."""
    cluster = cluster_of(case, device, Measured(**_launch(case)))
    path = RESULTS / "emulated_plans" / f"{cluster.name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(cluster_toml(cluster))
    plans = planned(case, cluster)
    plans = [replace(plans[0], name=CONTROL), *plans]
    begun, busy, own = time.perf_counter(), busy_seconds(), os.times()
    rounds = _launch(case, programs=[(plan.name, plan.program) for plan in plans], pairs=pairs)
    wall, busy = time.perf_counter() - begun, busy_seconds() - busy
    used = os.times()
    own_seconds = used.children_user - own.children_user + used.children_system - own.children_system
    others = (busy - own_seconds) / wall
    taken = list(zip(*rounds, strict=True))
    rows = Rows()
    for plan, seconds in zip(plans, taken, strict=True):
        row = {"case": case.name, "plan": plan.name, "predicted ms": 1e3 * plan.predicted}
        row |= {"measured ms": 1e3 * statistics.median(seconds), **ratio(seconds, taken[1])}
        rows.append(progress(row | {"pairs": len(seconds), "others": others}))
    verdict = _verdict(rows) | _after_measuring(plans, taken)
    if case in SLOW_RANK:
        gain = next((row["ratio"] for row in rows if row["plan"] == "dp"), 1.0)
        verdict |= {"gain": gain, "of most": gain / case.most_gain}
    return rows, progress(verdict)


def _verdict(rows: Rows) -> dict[str, Any]:
    """Compare the chosen plan with the fastest plan by hand; they are as fast if the interval contains 1."""
    _, chosen, *others = rows
    by_hand = [row for row in others if not row["plan"].startswith(FINALIST)] or others
    best = min(by_hand, key=lambda row: row["ratio"])
    verdict = "the fastest" if best["low"] > 1.0 else "slower" if best["high"] < 1.0 else "as fast"
    row = {"case": chosen["case"], "chosen is": verdict, "of": len(by_hand) + 1, "best by hand": best["plan"]}
    row |= {column: best[column] for column in ("ratio", "low", "high")}
    row |= {"predicted": best["predicted ms"] / chosen["predicted ms"]}
    return row | {"best as predicted": min(by_hand, key=lambda row: row["predicted ms"])["plan"]}


def _after_measuring(plans: Sequence[Planned], taken: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Compare the fastest of the plans that `--measure` runs with the fastest of all others."""
    medians = [statistics.median(seconds) for seconds in taken]
    ours = [at for at, plan in enumerate(plans) if plan.name != CONTROL and plan.name.startswith((CHOSEN, FINALIST))]
    fastest = min(ours, key=lambda at: medians[at])
    same = {at for at, plan in enumerate(plans) if any(_are_same(plan, plans[mine]) for mine in ours)}
    others = [at for at, plan in enumerate(plans) if plan.name != CONTROL and at not in same]
    verdict: dict[str, Any] = {"measured": plans[fastest].name}
    if others:
        best = min(others, key=lambda at: medians[at])
        verdict |= {f"measured, {key}": value for key, value in ratio(taken[best], taken[fastest]).items()}
    return verdict


def main() -> None:
    parser = arguments(__doc__)
    names = [case.name for case in (*CASES, *SLOW_RANK)]
    parser.add_argument("--pairs", type=int, default=7, help="number of steps of each program of a case")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="; ".join(names))
    parser.add_argument("--slow-rank", action="store_true", help="six steps with a rank two or four times slower")
    parser.add_argument("--device", type=Path, metavar="FILE", help="profile of one rank, made if missing")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds for making that profile")
    options = parsed(parser, pairs=1, only=[CASES[2].name], seconds=2.0)
    logging.disable(logging.WARNING)
    rows, verdicts = Rows(), Rows()
    with tempfile.TemporaryDirectory() as place:
        path = options.device or Path(place, "device.toml")
        if not path.exists():
            with _netns.hosts([None]) as hosts:
                words = [os.fspath(RANKS), "profile", os.fspath(path), str(options.seconds)]
                _netns.launch(hosts, words)
        device = load_cluster(path).devices[0]
    for case in SLOW_RANK if options.slow_rank else CASES:
        if not options.only or case.name in options.only:
            case_rows, verdict = compare(case, device, options.pairs)
            rows += case_rows
            verdicts.append(verdict)
    name = "slow_rank" if options.slow_rank else "emulated_plans"
    publish(name, rows)
    publish(f"{name}_chosen", verdicts)
    title, xlabel = "Plans on emulated clusters", "step time / that of the chosen plan"
    plot_ratios(name, rows, lambda row: f"{row['case']}: {row['plan']}", title=title, xlabel=xlabel)


if __name__ == "__main__":
    main()
