"""`shardwright report`: one HTML page about a plan."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from xdsl.utils.exceptions import PassFailedException

from ..api.files import PLANNED
from ..api.report.page import report_page
from ..api.report.planned import Planned
from ..ir.measured_steps import MeasuredSteps
from ..ir.text_file import write_atomically
from ..ir.units import bytes_text
from ..passes.analysis.simulation.measured import NotThisStepError
from .cli_arguments import command_line, told, tool_error
from .cli_console import print_report, working
from .ir_input import load_module
from .measured_tables import read_measured
from .plan_folder import PAGE, WHOLE, again, read_report, verify_search

MEASURED = "measured.json"
"""The file in the folder of a plan that is taken as its measured steps."""


def report_command(options: Namespace) -> int:
    """Write the page about a plan, and print where it is."""
    folder, output = Path(options.plan), Path(options.output)
    measured = options.measured
    if measured is None and (folder / MEASURED).exists():
        measured = str(folder / MEASURED)
    if output.is_dir():
        raise tool_error(f"-o {output} is a folder, expected a file", f"write into it: -o {output / 'report.html'}")
    with working(f"reporting {folder}") as phase:
        phase("reading the plan")
        plan = _planned_at(folder, read_measured(measured) if measured is not None else None)
        other = _planned_at(Path(options.against)) if options.against is not None else None
        phase("writing the page")
        hint = f"measure again: {command_line('run', folder, '--overlap', measured)}"
        with (
            told(PassFailedException, f"{folder / PLANNED} is not a planned step: ", "plan again"),
            told(NotThisStepError, f"{measured} belongs to another step: ", hint),
        ):
            page = report_page(plan, other)
        write_atomically(output, page)
    print_report(f"{output} ({bytes_text(len(page.encode()))}) opens in any browser; it loads nothing from elsewhere")
    return 0


def _planned_at(folder: Path, measured: MeasuredSteps | None = None) -> Planned:
    report = read_report(folder, *WHOLE, *PAGE)
    if report["chosen"] is not None:
        verify_search(report, folder, f"plan again: {again(report, folder)}")
    return Planned(report, load_module(str(folder / PLANNED)), str(folder), measured)
