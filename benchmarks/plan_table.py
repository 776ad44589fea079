"""
Compare plans of `shardwright plan` with plans by hand, on cases where a plan by hand was once faster.

    python benchmarks/plan_table.py [--only STEP@CLUSTER ...] [--wall]

Each row plans a step for a cluster with default options, and compiles plans by hand as pipelines of passes. `noted` is
the step time of the plan by hand at the time when the search was worse; it comes from an older cost model, so the plan
by hand may have another time today. A row is met if the plan fits and is as fast as both times. One row plans the
preset `zero3` and limits its memory.

With `--wall` the command makes each plan in a separate process. The table then has its wall time, which includes
start-up, verification and saving, and the limit on it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _plain_plans import ACCUMULATED, PIPELINED, Judged, Pins, Plain, Workshop
from _random_pairs import CLUSTERS
from _report import Rows, arguments, parsed, plot, publish
from plan_quality import TOLERANCE, prepared_step
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import PlanOptions, import_training_step, lower
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh, parse_mesh
from shardwright.models.registry import training_step
from shardwright.passes.errors import PassError

GIB = 2**30


@dataclass(frozen=True)
class Hand:
    """A plan by hand: a mesh (by default the cluster's), pinned presets, and stages with micro-batches and chunks."""

    name: str
    mesh: str | None = None
    pins: Pins = ()
    stages: int = 1
    parts: int = 1
    schedule: str = "1f1b"
    chunks: int = 1

    def plan(self, own: Mesh) -> Plain:
        mesh = parse_mesh(self.mesh) if self.mesh is not None else own
        chunks = f" chunks={self.chunks}" if self.chunks > 1 else ""
        stages = f"partition-stages{{stages={self.stages} micro_batches={self.parts}{chunks}}},"
        before = stages if self.stages > 1 else ""
        finish = PIPELINED.format(parts=self.parts, schedule=self.schedule) if before else "program"
        if not before and self.parts > 1:
            finish = ACCUMULATED.format(parts=self.parts)
        return Plain("by hand", self.name, mesh, self.pins, finish, before)


@dataclass(frozen=True)
class Case:
    """
    A row of the table.

    Args:
        noted_ms: step of the plan by hand when the search was worse; absent if the cluster has changed since.
        wall: upper limit of the command's seconds on two idle cores.
        options: options of the command, as names of `PlanOptions`.
    """

    step: str
    cluster: str
    noted_ms: float | None = None
    by_hand: tuple[Hand, ...] = ()
    limit_ms: float | None = None
    limit_gib: float | None = None
    wall: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        """Return the name of the case, for instance `gpt2-small@h100-8x8`."""
        return f"{self.step}@{self.cluster}"

    @property
    def cluster_file(self) -> str:
        """Return the path of the cluster file in `benchmarks/clusters`, or the name of a shipped cluster."""
        file = CLUSTERS / f"{self.cluster}.toml"
        return str(file) if file.exists() else self.cluster

    @property
    def words(self) -> tuple[str, ...]:
        """Return the options as words of a command line."""
        pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in self.options.items())
        return tuple(word for pair in pairs for word in pair)


_FIXED = {"mesh": "8x8", "stages": 1, "micro_batches": 1, "duplex": "no"}
_ALL, _GPU = ("node", "gpu"), ("gpu",)
_DP, _ZERO3, _ON_4X16 = (("dp", _ALL),), (("zero3", _ALL),), Hand("search on 4x16", "node=4,gpu=16")
_IN_STAGES = (Hand("two stages, searched", stages=2, parts=8), Hand("two stages of dp", pins=_DP, stages=2, parts=8))
_ACCUMULATING = (
    Hand("accumulation in 4 parts", parts=4),
    Hand("accumulation in 4 parts, zero3", pins=(("zero3", _GPU),), parts=4),
    Hand("two stages", stages=2, parts=4),
)
_IN_CHUNKS = (
    Hand("eight stages of dp in two chunks", None, (("dp", _GPU),), 8, 32, "interleaved-1f1b", 2),
    Hand("eight stages of dp", None, (("dp", _GPU),), 8, 16, "eager-1f1b"),
)
_NESTED = Hand("dp over nodes, zero3 inside", pins=(("dp", ("node",)), ("zero3", _GPU)))

CASES = (
    Case("gpt2-small", "h100-8x8", 6.19, (Hand("dp", pins=_DP), _ON_4X16), limit_ms=6.2, wall=15.0),
    Case("gpt2-tiny", "local-4", None, (Hand("dp", pins=(("dp", _GPU),)),)),
    Case("bert-sgmoe", "hidup-2x4-10g", None, (_NESTED,)),
    Case("gpt2-small", "hap-8x8", 527.0, (_ON_4X16, Hand("eight stages", stages=8, parts=8)), wall=30.0),
    Case("gpt2-small", "amp-het-cluster", 421.0, _IN_STAGES),
    Case("gpt2-small", "mixed-4", None, _ACCUMULATING),
    Case("llama-8b", "h100-8x8", 265.0, (Hand("zero3", pins=_ZERO3),), wall=60.0),
    Case("llama-8b", "h100-8x8", 265.0, limit_gib=12.0, options={"pins": "zero3", "keep_activations": 0.3}),
    Case("gpt2-48", "h100-8x8", wall=30.0),
    Case("gpt2-xl", "rtx4090-4x4", 515.0, _IN_CHUNKS),
    Case("gpt2-small", "h100-8x8", wall=10.9, options=_FIXED),
    Case("_wide_steps:gpt_wide", "h100-128x8", wall=20.0),
    Case("_wide_steps:gpt_wide", "h100-512x8", wall=60.0),
)
"""The rows of the table, and four cases that only limit the wall time."""


@lru_cache(maxsize=2)
def _imported(step: str) -> ModuleOp:
    return import_training_step(training_step(step))


def planned(case: Case) -> dict[str, Any]:
    """Plan the case in this process and return the report of the plan, or the error as `error`."""
    cluster, options = find_cluster(case.cluster_file), PlanOptions(**case.options)
    try:
        plan = lower(_imported(case.step).clone(), cluster, options, name=case.step, step_spec=case.step, seconds={})
    except PassError as error:
        return {"error": str(error)}
    return dict(plan.report)


def planned_by_command(case: Case) -> dict[str, Any]:
    """Plan the case by the command and return the same report, with the wall time in seconds as `wall`."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "shardwright.tools.cli", "plan", case.step, "--cluster", case.cluster_file]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        began = perf_counter()
        done = subprocess.run([*words, "--out", folder, *case.words], capture_output=True, text=True, env=environment)
        wall = perf_counter() - began
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1], "wall": wall}
        return {**json.loads((Path(folder) / "plan.json").read_text()), "wall": wall}


def row_of(case: Case, *, wall: bool) -> dict[str, Any]:
    cluster = find_cluster(case.cluster_file)
    report = planned_by_command(case) if wall else planned(case)
    workshop = Workshop(prepared_step(case.step), cluster) if case.by_hand else None
    plans = [workshop.judge(hand.plan(cluster.mesh)) for hand in case.by_hand] if workshop is not None else []
    counted = [plan for plan in plans if plan.counts]
    best = min(counted, key=lambda plan: plan.step or 0.0, default=None)
    step = report.get("predicted_step_s")
    row = {"step": " ".join((case.step, *case.words)), "cluster": case.cluster}
    row |= {"plan": report.get("chosen") or report.get("error") or "as asked", "plan ms": _ms(step)}
    row |= {"plan GiB": max(report["peak_bytes"]) / GIB if "peak_bytes" in report else None}
    if best is not None:
        row |= {"by hand": best.name, "by hand ms": _ms(best.step), "by hand GiB": best.peak_bytes / GIB}
    else:
        refusals = "; ".join(plan.refusal[:60] for plan in plans)
        row |= {"by hand": refusals, "by hand ms": None, "by hand GiB": None}
    row |= {"noted ms": case.noted_ms, "met": is_met(case, report, best)}
    row |= {"candidates": len(report.get("candidates", ())), "wall s": report.get("wall"), "wall at most s": case.wall}
    listed = [[plan.name, _ms(plan.step), plan.peak_bytes / GIB, plan.refusal] for plan in plans]
    return row | {"all by hand": listed}


def is_met(case: Case, report: dict[str, Any], best: Judged | None) -> bool:
    """Return whether the plan is as fast as the best plan by hand and within the limits of the case."""
    step = report.get("predicted_step_s")
    if step is None:
        return False
    # Limits have three digits, so a time that rounds to the limit meets it.
    steps = [ms * 1e-3 * 1.0005 for ms in (case.noted_ms, case.limit_ms) if ms is not None]
    if best is not None and best.step is not None:
        steps.append(best.step)
    fits = case.limit_gib is None or max(report["peak_bytes"]) <= case.limit_gib * GIB
    return fits and all(step <= limit * (1.0 + TOLERANCE) for limit in steps)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def plot_steps(table: Sequence[Mapping[str, Any]]) -> None:
    """Plot the step times of the plans relative to the plans by hand to `results/plan_table.png`."""
    shown = [row for row in table if row["plan ms"] and (row["by hand ms"] or row["noted ms"])]
    series = {
        "by hand ms": ("o", "plan / best plan by hand today"),
        "noted ms": ("x", "plan / plan by hand when the search was worse"),
    }
    with plot("plan_table", 8, 0.5 * len(shown) + 1.8, title="Simulated step of the chosen plan") as axes:
        for key, (marker, label) in series.items():
            points = [(row["plan ms"] / row[key], place) for place, row in enumerate(shown) if row[key]]
            if points:
                axes.plot(*zip(*points, strict=True), marker, label=label)
        axes.axvline(1.0, color="grey", linewidth=0.8)
        axes.set_yticks(range(len(shown)), [f"{row['step']}\n{row['cluster']}" for row in shown], fontsize=7)
        axes.invert_yaxis()
        axes.set(xlabel="step time, relative to the plan by hand (1 = equal)", xlim=(0.0, None))
        axes.legend(fontsize=8, loc="lower left")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", metavar="STEP@CLUSTER")
    parser.add_argument("--wall", action="store_true", help="make plans by the command and measure its wall time")
    options = parsed(parser, only=["gpt2-tiny@local-4"])
    cases = [case for case in CASES if not options.only or case.name in options.only]
    table = Rows()
    for case in cases:
        # Cases without a plan by hand only limit the wall time.
        if options.wall or case.by_hand or case.limit_gib is not None:
            table.append(row := row_of(case, wall=options.wall))
            print(f"{row['step']} @ {row['cluster']}: {row['plan ms']} ms, met: {row['met']}", file=sys.stderr)
    publish("plan_table", table, hidden=() if options.wall else ("wall s", "wall at most s"))
    plot_steps(table)


if __name__ == "__main__":
    main()
