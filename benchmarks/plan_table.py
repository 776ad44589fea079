"""
What `shardwright plan` gives where something better was once found by hand.

    python benchmarks/plan_table.py [--only STEP@CLUSTER ...] [--wall]

Each row plans a step for a cluster with no options and stands beside plans by hand, which are made again as pipelines
of passes. `noted` is the figure that was written down when the search was worse than that (an older cost model, so the
one that is made again may differ). A row is met if the plan fits and is as fast as both. The last row is the preset
`zero3`, which is about memory.

With `--wall` each plan is made by the command in a process of its own, and its seconds, start-up, verification and
saving included, stand beside what they may be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _plain_plans import ACCUMULATED, PIPELINED, Judged, Pins, Plain, Workshop
from _report import RESULTS, parsed, publish
from plan_quality import TOLERANCE, prepared_step
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import PlanOptions, import_training_step, lower
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh, parse_mesh
from shardwright.models.registry import training_step
from shardwright.passes.errors import PassError

GIB = 2**30
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Hand:
    """A plan by hand: its mesh, where it is not the cluster's, what is pinned, and its stages and micro-batches."""

    name: str
    mesh: str | None = None
    pins: Pins = ()
    stages: int = 1
    parts: int = 1
    schedule: str = "1f1b"

    def plan(self, own: Mesh) -> Plain:
        """As a pipeline of passes."""
        mesh = parse_mesh(self.mesh) if self.mesh is not None else own
        before = f"partition-stages{{stages={self.stages} micro_batches={self.parts}}}," if self.stages > 1 else ""
        finish = PIPELINED.format(parts=self.parts, schedule=self.schedule) if before else "program"
        if not before and self.parts > 1:
            finish = ACCUMULATED.format(parts=self.parts)
        return Plain("by hand", self.name, mesh, self.pins, finish, before)


@dataclass(frozen=True)
class Case:
    """
    A row.

    Args:
        noted_ms: the step by hand when the search was worse; None where it is about memory, or the cluster has changed.
        limit_ms, limit_gib: what the step and its memory may be at most.
        wall: the seconds that the command may take on two quiet cores.
        options: of the command.
    """

    step: str
    cluster: str
    noted_ms: float | None = None
    by_hand: tuple[Hand, ...] = ()
    limit_ms: float | None = None
    limit_gib: float | None = None
    wall: float | None = None
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`gpt2-small@h100-8x8`."""
        return f"{self.step}@{self.cluster}"

    @property
    def cluster_file(self) -> str:
        """The path of the cluster file in `benchmarks/clusters`, or the name of a shipped cluster."""
        file = HERE / "clusters" / f"{self.cluster}.toml"
        return str(file) if file.exists() else self.cluster


_FIXED = ("--mesh", "8x8", "--stages", "1", "--micro-batches", "1", "--duplex", "no")
_ALL, _GPU = ("node", "gpu"), ("gpu",)

CASES = (
    Case(
        "gpt2-small",
        "h100-8x8",
        6.19,
        (Hand("dp", pins=(("dp", _ALL),)), Hand("search on 4x16", "node=4,gpu=16")),
        limit_ms=6.2,
        wall=15.0,
    ),
    Case("gpt2-tiny", "local-4", None, (Hand("dp", pins=(("dp", _GPU),)),)),
    Case(
        "bert-sgmoe",
        "hidup-2x4-10g",
        1145.0,
        (Hand("dp over nodes, zero3 inside", pins=(("dp", ("node",)), ("zero3", _GPU))),),
    ),
    Case(
        "gpt2-small",
        "hap-8x8",
        527.0,
        (Hand("search on 4x16", "node=4,gpu=16"), Hand("eight stages", stages=8, parts=8)),
        wall=30.0,
    ),
    Case(
        "gpt2-small",
        "amp-het-cluster",
        421.0,
        (
            Hand("two stages, searched", stages=2, parts=8),
            Hand("two stages of dp", pins=(("dp", _ALL),), stages=2, parts=8),
        ),
    ),
    Case(
        "gpt2-small",
        "mixed-4",
        None,
        (
            Hand("accumulation in 4 parts", parts=4),
            Hand("accumulation in 4 parts, zero3", pins=(("zero3", _GPU),), parts=4),
            Hand("two stages", stages=2, parts=4),
        ),
    ),
    Case("llama-8b", "h100-8x8", 265.0, (Hand("zero3", pins=(("zero3", _ALL),)),), wall=60.0),
    Case("llama-8b", "h100-8x8", 265.0, limit_gib=12.0, options=("--pins", "zero3", "--keep-activations", "0.3")),
    Case("gpt2-48", "h100-8x8", wall=30.0),
    Case("gpt2-small", "h100-8x8", wall=10.9, options=_FIXED),
    Case("_wide_steps:gpt_wide", "h100-128x8", wall=20.0),
    Case("_wide_steps:gpt_wide", "h100-512x8", wall=60.0),
)
"""The rows of the table, and four that are about time alone."""


@lru_cache(maxsize=2)
def _imported(step: str) -> ModuleOp:
    return import_training_step(training_step(step))


def planned(case: Case) -> dict[str, Any]:
    """The report of a plan that is made in this process; `error` where there is none."""
    if case.options == _FIXED:
        options = PlanOptions(mesh="8x8", stages=1, micro_batches=1, duplex="no")
    else:
        given = dict(zip(case.options[::2], case.options[1::2], strict=True))
        keep = float(given["--keep-activations"]) if "--keep-activations" in given else None
        options = PlanOptions(pins=given.get("--pins"), keep_activations=keep)
    cluster = find_cluster(case.cluster_file)
    try:
        made = lower(_imported(case.step).clone(), cluster, options, name=case.step, step_spec=case.step, seconds={})
    except PassError as error:
        return {"error": str(error)}
    return dict(made.report)


def planned_by_command(case: Case) -> dict[str, Any]:
    """The same from the command, with the seconds that a user waits as `wall`."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "shardwright.tools.cli", "plan", case.step, "--cluster", case.cluster_file]
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        began = perf_counter()
        done = subprocess.run([*words, "--out", folder, *case.options], capture_output=True, text=True, env=environment)
        wall = perf_counter() - began
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1], "wall": wall}
        return {**json.loads((Path(folder) / "plan.json").read_text()), "wall": wall}


def by_hand(case: Case, cluster: Cluster) -> list[Judged]:
    """The plans by hand."""
    if not case.by_hand:
        return []
    workshop = Workshop(prepared_step(case.step), cluster)
    return [workshop.judge(hand.plan(cluster.mesh)) for hand in case.by_hand]


def row_of(case: Case, *, wall: bool) -> dict[str, Any]:
    """What a case comes to."""
    cluster = find_cluster(case.cluster_file)
    report = planned_by_command(case) if wall else planned(case)
    hands = by_hand(case, cluster)
    counted = [each for each in hands if each.counts]
    best = min(counted, key=lambda each: each.step or 0.0, default=None)
    step = report.get("predicted_step_s")
    return {
        "step": " ".join((case.step, *case.options)),
        "cluster": case.cluster,
        "plan": report.get("chosen") or report.get("error") or "as asked",
        "plan ms": _ms(step),
        "plan GiB": max(report["peak_bytes"]) / GIB if "peak_bytes" in report else None,
        "by hand": best.name if best is not None else "; ".join(each.refusal[:60] for each in hands),
        "by hand ms": _ms(best.step) if best is not None else None,
        "by hand GiB": best.peak_bytes / GIB if best is not None else None,
        "noted ms": case.noted_ms,
        "met": is_met(case, report, best),
        "candidates": len(report.get("candidates", ())),
        "wall s": report.get("wall"),
        "wall at most s": case.wall,
        "all by hand": [[each.name, _ms(each.step), each.peak_bytes / GIB, each.refusal] for each in hands],
    }


def is_met(case: Case, report: dict[str, Any], best: Judged | None) -> bool:
    """Whether the plan is as good as those by hand; what is planned fits."""
    step = report.get("predicted_step_s")
    if step is None:
        return False
    # A figure that was noted in three digits is met by what is rounded to it.
    steps = [ms * 1e-3 * 1.0005 for ms in (case.noted_ms, case.limit_ms) if ms is not None]
    if best is not None and best.step is not None:
        steps.append(best.step)
    room = case.limit_gib is None or max(report["peak_bytes"]) <= case.limit_gib * GIB
    return room and all(step <= each * (1.0 + TOLERANCE) for each in steps)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def rows(cases: Sequence[Case], *, wall: bool) -> Iterator[dict[str, Any]]:
    """All cases; those about time alone only where it is measured."""
    for case in cases:
        if wall or case.by_hand or case.limit_gib is not None:
            row = row_of(case, wall=wall)
            print(f"{row['step']} @ {row['cluster']}: {row['plan ms']} ms, met: {row['met']}", file=sys.stderr)
            yield row


def plot(table: Sequence[dict[str, Any]]) -> None:
    """The plans' steps relative to those by hand, to `results/plan_table.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [row for row in table if row["plan ms"] and (row["by hand ms"] or row["noted ms"])]
    names = [f"{row['step']}\n{row['cluster']}" for row in shown]
    figure, axes = pyplot.subplots(figsize=(8, 0.6 * len(shown) + 1.5))
    for key, marker in (("by hand ms", "o"), ("noted ms", "x")):
        points = [(row["plan ms"] / row[key], place) for place, row in enumerate(shown) if row[key]]
        if points:
            axes.plot(*zip(*points, strict=True), marker, label=f"plan / {key[:-3]}")
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(shown)), names, fontsize=7)
    axes.set_xlabel("step of the plan relative to that by hand")
    axes.legend()
    figure.tight_layout()
    figure.savefig(RESULTS / "plan_table.png", dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Print the table and write JSON and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="STEP@CLUSTER")
    parser.add_argument("--wall", action="store_true", help="time the command")
    options = parsed(parser, only=["gpt2-tiny@local-4"])
    cases = [case for case in CASES if not options.only or case.name in options.only]
    table = list(rows(cases, wall=options.wall))
    hidden = ("all by hand",) if options.wall else ("all by hand", "wall s", "wall at most s")
    publish("plan_table", table, command=f"python benchmarks/plan_table.py {' '.join(sys.argv[1:])}", hidden=hidden)
    plot(table)


if __name__ == "__main__":
    main()
