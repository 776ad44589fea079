"""
Predicted against measured steps: 50 plans of five model families on two and on four gloo processes of this machine.

    python benchmarks/prediction.py [--quick] [--only "mlp-small x2" ...] [--until plan] [--folder DIR]

Each phase keeps its results in the folder and does not repeat what is there, so a run can be ended and taken up again:

profile   a cluster file per mesh, by `shardwright profile`
plan      the IR and the program of every plan
measure   the plans of a group in the same processes, in turns; of a step the time until its last rank is done
predict   the table: by back end, predicted step, correlation, errors, and whether the best plan was chosen
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _figures_of_fit import median_error, pearson, regret
from _prediction_cases import GROUPS, STEPS, Group, mesh_of, meshes, plan
from _prediction_ranks import Turn, quiet_steps, time_steps
from _report import RESULTS, publish
from xdsl.context import Context
from xdsl.dialects.func import FuncOp
from xdsl.universe import XDSL_UNIVERSE

from shardwright.api.compile import on_mesh
from shardwright.api.local_cluster import measured_cluster
from shardwright.dialects.text import parse_module
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import cluster_toml, load_cluster
from shardwright.ir.mesh import parse_mesh
from shardwright.passes.analysis.timeline import predict
from shardwright.runtime import run_ranks
from shardwright.tools.universe import UNIVERSE

PHASES = ("profile", "plan", "measure", "predict")


GROUP_SECONDS = 14.0
"""How long the plans of one group run."""

PROFILE_SECONDS = 20.0


def profile(folder: Path, mesh: str, seconds: float) -> Cluster:
    """The cluster of a mesh on this machine, as its file in the folder says; measured where there is none."""
    path = folder / "clusters" / f"{mesh.replace(',', '-').replace('=', '')}.toml"
    if not path.exists():
        parsed = parse_mesh(mesh)
        path.parent.mkdir(parents=True, exist_ok=True)
        measured = on_mesh(measured_cluster(parsed.device_count, seconds), parsed)
        path.write_text(cluster_toml(measured))
    return load_cluster(path)


def plan_group(folder: Path, group: Group) -> None:
    """Write the IR and the program of every plan of the group that is not there."""
    for form in group.forms:
        path = plan_folder(folder, group, form)
        if not path.exists():
            cluster = profile(folder, mesh_of(group, form), PROFILE_SECONDS)
            plan(STEPS[group.step](), form, cluster).save(path)


def plan_folder(folder: Path, group: Group, form: str) -> Path:
    """Where a plan is."""
    return folder / "plans" / group.name / form


def measure_group(folder: Path, group: Group, seconds: float) -> dict[str, list[Turn]]:
    """The turns of every plan of the group."""
    path = folder / "measured" / f"{group.name}.json"
    if not path.exists():
        programs = [(form, (plan_folder(folder, group, form) / "program.py").read_text()) for form in group.forms]
        found = run_ranks(time_steps, group.ranks, STEPS[group.step], programs, seconds, timeout=60 + 4 * seconds)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({form: [asdict(turn) for turn in turns] for form, turns in found[0].items()}))
    read = json.loads(path.read_text())
    return {form: [Turn(**turn) for turn in turns] for form, turns in read.items()}


def load(path: Path) -> FuncOp:
    """The step of a plan, from its IR."""
    context = Context()
    for name, make in {**XDSL_UNIVERSE.all_dialects, **UNIVERSE.all_dialects}.items():
        context.register_dialect(name, make)
    module = parse_module(context, path.read_text(), str(path))
    return next(op for op in module.ops if isinstance(op, FuncOp))


def rows_of(folder: Path, group: Group) -> Iterator[dict[str, Any]]:
    """A row per plan of a group: measured and predicted seconds."""
    measured = measure_group(folder, group, GROUP_SECONDS)
    for form in group.forms:
        func = load(plan_folder(folder, group, form) / "step.mlir")
        cluster = profile(folder, mesh_of(group, form), PROFILE_SECONDS)
        steps = quiet_steps(measured[form])
        row = {"group": group.name, "plan": form, "steps": len(steps), "measured ms": 1e3 * statistics.median(steps)}
        for back_end, each in back_ends(cluster).items():
            row[f"{back_end} ms"] = 1e3 * predict(func, each).seconds
        yield row


def back_ends(cluster: Cluster) -> Mapping[str, Cluster]:
    """The cluster with what each back end may know of it."""
    return {"analytic": cluster}


def summary(rows: Sequence[Mapping[str, Any]], back_end: str) -> dict[str, Any]:
    """How well a back end does on all rows."""
    measured = [row["measured ms"] for row in rows]
    predicted = [row[f"{back_end} ms"] for row in rows]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    lost = {group: choice_regret(rows, group, back_end) for group in groups}
    return {
        "back end": back_end,
        "plans": len(rows),
        "spread": max(measured) / min(measured),
        "pearson": pearson(predicted, measured),
        "median error": median_error(predicted, measured),
        "good choices": sum(each <= 0.05 for each in lost.values()),
        "groups": len(groups),
        "worst choice": max(lost.values()),
    }


def choice_regret(rows: Sequence[Mapping[str, Any]], group: str, back_end: str) -> float:
    """By how much the plan that a back end prefers in a group is slower than the fastest."""
    mine = [row for row in rows if row["group"] == group]
    predicted = {row["plan"]: row[f"{back_end} ms"] for row in mine}
    return regret(predicted, {row["plan"]: row["measured ms"] for row in mine})


def main() -> None:
    """Go through the phases, print the tables and write JSON and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three seconds for a group, not fourteen")
    parser.add_argument("--only", nargs="+", choices=[group.name for group in GROUPS], help="these groups")
    parser.add_argument("--until", choices=PHASES, default=PHASES[-1], help="the last phase")
    parser.add_argument("--folder", type=Path, default=RESULTS / "prediction", help="what is kept between runs")
    options = parser.parse_args()
    groups = [group for group in GROUPS if options.only is None or group.name in options.only]
    for mesh in meshes(groups):
        profile(options.folder, mesh, PROFILE_SECONDS)
    for group in groups if options.until != "profile" else ():
        plan_group(options.folder, group)
    for group in groups if options.until in ("measure", "predict") else ():
        measure_group(options.folder, group, 3.0 if options.quick else GROUP_SECONDS)
    if options.until == "predict":
        report([row for group in groups for row in rows_of(options.folder, group)])


def report(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print and write the tables."""
    command = "python benchmarks/prediction.py"
    publish("prediction-plans", rows, command=command)
    names = [column.removesuffix(" ms") for column in rows[0] if column.endswith(" ms") and column != "measured ms"]
    publish("prediction", [summary(rows, name) for name in names], command=command)


if __name__ == "__main__":
    main()
