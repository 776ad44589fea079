"""Reading of the files that `shardwright plan` wrote, with checks because a user may have edited them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from ..api.plan_report import PlanReport
from ..ir.cluster_fields import shown
from ..ir.json_shape import COUNT, NUMBER, Shape, entries_of, fault_of
from ..ir.text_file import read_text
from ..passes.planning.records import CandidateRecord
from ..passes.planning.summary import TriedRecord
from .cli_arguments import command_line, tool_error
from .diagnostics import DiagnosticError

CANDIDATE: Shape = {**entries_of(CandidateRecord), "ranks?": [COUNT]}
"""The entries of a `CandidateRecord`."""

TRIED: Shape = {**entries_of(TriedRecord), "peak_bytes?": NUMBER, "fits?": bool}
"""The entries of a `TriedRecord`; older versions also wrote whether a candidate fits."""

_REPORT: dict[str, Shape] = {
    "name?": str,
    "step?": (str, type(None)),
    "mesh": {"*": int},
    "ranks?": int,
    "cluster?": str,
    "predicted_step_s?": NUMBER,
    "predicted_range_s?": ([NUMBER], type(None)),
    "predicted_compute_s?": NUMBER,
    "predicted_exposed_communication_s?": NUMBER,
    "chosen?": (str, type(None)),
    "bound_s?": (*NUMBER, type(None)),
    "bound_of?": (str, type(None)),
    "gap?": (*NUMBER, type(None)),
    "chosen_candidate?": (CANDIDATE, type(None)),
    "candidates?": [TRIED],
    "peak_bytes?": [NUMBER],
    "peak?": {
        "bytes": NUMBER,
        "at": str,
        "roles": {"*": NUMBER},
        "largest?": [{"value": str, "bytes": NUMBER}],
        "*": object,
    },
    "*": object,
}
"""The entries of `plan.json` that are read again."""

_OF_PAGES: dict[str, Shape] = {
    "stages?": [COUNT],
    "idle?": [COUNT],
    "collective_bytes?": {"*": NUMBER},
    "versions?": {"*": str},
}
"""The entries that only a page about a plan reads."""

PAGE = tuple(name.removesuffix("?") for name in _OF_PAGES)

WHOLE = tuple(name.removesuffix("?") for name in _REPORT if name != "*")
"""The entries that the `plan.json` of a search over plans must have."""


def read_report(folder: Path, *needed: str) -> PlanReport:
    """Return the `plan.json` of a plan, with its mesh and the needed entries; DiagnosticError if it is not valid."""
    path = folder / "plan.json"
    try:
        report = json.loads(read_text(path), parse_constant=_no_number)
    except OSError as error:
        raise _error(f"{path} is not a plan: {error.strerror}", folder) from error
    except (ValueError, RecursionError) as error:
        raise _error(f"{path} is not a plan: it is not JSON: {error}", folder) from error
    if not isinstance(report, dict):
        raise _error(f"{path} is not a plan: it is {shown(cast(object, report))}, expected an object", folder)
    for name in ("mesh", *needed):
        if name not in report:
            raise _error(f"{path} is not a plan: it has no {name!r}", folder)
    if (fault := fault_of(report, {**_OF_PAGES, **_REPORT})) is not None:
        raise _error(f"{path} was changed, or was written by another version: {fault}", folder)
    return cast("PlanReport", report)


def verify_search(report: PlanReport, folder: Path, hint: str) -> None:
    """Raise DiagnosticError if the entries of a search over plans contradict one another."""
    path = folder / "plan.json"
    if report["chosen"] not in [each["name"] for each in report["candidates"]]:
        raise tool_error(f"{path} was changed: its plan {report['chosen']!r} is not among its candidates", hint)
    if report["bound_s"] is not None and None in (report["gap"], report["bound_of"]):
        raise tool_error(f"{path} was changed: it has bound_s but lacks gap or bound_of", hint)


def again(report: PlanReport, folder: Path) -> str:
    """Return the command that writes the plan again."""
    return command_line("plan", report.get("step") or "STEP", "--cluster", "FILE", "--out", folder)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _error(message: str, folder: Path) -> DiagnosticError:
    hint = f"write one with: {command_line('plan', 'STEP', '--cluster', 'FILE', '--out', folder)}"
    return tool_error(message, hint)
