"""`shardwright replan`: derives a plan for other devices from an existing plan."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from ..api.files import PLANNED, UNDECIDED, plan_digest
from ..api.plan_record import RECORD, PlanRecord
from ..api.plan_report import PlanReport
from ..api.plan_tables import legend_tables, rows_table
from ..api.replan import OtherStepError, Transition, replan
from ..ir.cluster_file import find_cluster
from ..ir.units import bytes_text
from .cli_arguments import command_line, told, tool_error
from .cli_console import print_report, process_began, working
from .cli_plan import side_processes, summary
from .ir_input import load_module
from .plan_folder import read_report


def replan_command(options: Namespace) -> int:
    """Plan again, write the new plan, and print the state that has to move."""
    folder = Path(options.plan)
    report = read_report(folder, "name", "step", "ranks")
    cluster = find_cluster(options.cluster)
    again = command_line("plan", report["step"] or "STEP", "--cluster", options.cluster, "--out", options.out)
    if report.get("chosen_candidate") is None or not (folder / UNDECIDED).exists():
        raise tool_error(
            f"{folder} has no plan of a search, or was written by an older version", f"plan again: {again}"
        )
    with working(f"planning {report['name']} again") as phase:
        phase("reading the plan")
        undecided, old = load_module(str(folder / UNDECIDED)), _record(folder, report)
        if old.cluster.mesh.device_count != report["ranks"]:
            details = f"plan.json has {report['ranks']} ranks, but step.mlir has {old.cluster.mesh.device_count}"
            raise tool_error(f"the files in {folder} belong to different plans: {details}", f"plan again: {again}")
        phase("planning")
        with (
            told(ValueError, hint="list with --remaining each old rank that remains, once"),
            told(OtherStepError, f"the files in {folder} belong to different plans: ", f"plan again: {again}"),
        ):
            replanned = replan(undecided, old, cluster, options.remaining, processes=side_processes())
    written = replanned.step.save(options.out, process_began())
    tables = [summary(replanned.step.report), moved(replanned.state), *legend_tables([replanned.step.report["chosen"]])]
    print_report(*tables, f"{written}/program.py is the new program")
    return 0


def _record(folder: Path, report: PlanReport) -> PlanRecord:
    """Return the record of the old plan; if `step.mlir` was edited since, derive it from the edited IR."""
    try:
        record = PlanRecord.read(folder / RECORD, plan_digest(folder))
    except (OSError, ValueError):
        record = PlanRecord.of(load_module(str(folder / PLANNED)), report)
    return replace(record, name=report["name"], step=report["step"], candidate=report["chosen_candidate"])


def moved(found: Transition) -> Table:
    """Return a table of the state that has to move."""
    rows = {
        "of the step, once": bytes_text(found.state),
        "on a rank that needs it": bytes_text(found.moves.kept),
        "to move": f"{bytes_text(found.moves.bytes)}, in {len(found.moves.moves)} parts",
    }
    if found.moves.lost:
        size, parts = bytes_text(found.moves.bound - found.moves.bytes), len(found.moves.lost)
        rows["on no remaining rank"] = f"{size}, in {parts} parts, which a checkpoint must have"
    rows["both, at least" if found.moves.lost else "at least"] = bytes_text(found.least)
    return rows_table("state", rows)
