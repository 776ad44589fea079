"""`shardwright replan`: a plan for other devices, made of the one that there is."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from rich.table import Table

from ..api.files import UNDECIDED
from ..api.replan import Replanned, replan
from ..ir.cluster_file import find_cluster
from ..ir.units import bytes_text
from .cli_arguments import TOOL, command_line
from .cli_console import print_report, process_began, working
from .cli_plan import summary
from .diagnostics import Diagnostic, DiagnosticError
from .ir_input import load_module
from .plan_folder import read_report


def replan_command(options: Namespace) -> int:
    """Plan again, write the new plan, and say what has to be moved."""
    folder = Path(options.plan)
    report = read_report(folder, "name", "step", "ranks")
    cluster = find_cluster(options.cluster)
    again = command_line("plan", report["step"] or "STEP", "--cluster", options.cluster, "--out", options.out)
    if report.get("chosen_candidate") is None or not (folder / UNDECIDED).exists():
        raise _error(f"{folder} was not made by a search over plans, or by an older version", f"plan again: {again}")
    with working(f"planning {report['name']} again") as phase:
        phase("reading the plan")
        undecided, planned = load_module(str(folder / UNDECIDED)), load_module(str(folder / "step.mlir"))
        phase("planning")
        try:
            found = replan(undecided, planned, report, cluster, options.remaining)
        except ValueError as error:
            raise _error(str(error), "name with --remaining each old rank that is left, once") from error
    written = found.step.save(options.out, process_began())
    print_report(summary(found.step.report), moved(found), f"{written}/program.py is the new program")
    return 0


def moved(found: Replanned) -> Table:
    """What has to be moved."""
    table = Table(title="state", show_header=False)
    rows = {
        "of the step, once": bytes_text(found.state),
        "on a rank that needs it": bytes_text(found.moves.kept),
        "to move": f"{bytes_text(found.moves.bytes)}, in {len(found.moves.moves)} parts",
        "no less than": bytes_text(found.least),
    }
    if found.moves.lost:
        size, parts = bytes_text(found.moves.bound - found.moves.bytes), len(found.moves.lost)
        rows["on no remaining rank"] = f"{size}, in {parts} parts, which a checkpoint must have"
    for row in rows.items():
        table.add_row(*row)
    return table


def _error(message: str, hint: str) -> DiagnosticError:
    return DiagnosticError(Diagnostic(message, TOOL, hint=hint))
