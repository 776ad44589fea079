"""`shardwright explain`: the reasons for a plan, and the cost of alternatives."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text
from xdsl.utils.exceptions import PassFailedException

from ..api.files import UNDECIDED
from ..api.plan_report import PlanReport
from ..api.plan_tables import legend_tables, plan_parts
from ..api.why_not import difference, why_not
from ..ir.plain import closest
from ..ir.sharding import Sharding
from ..ir.signatures import Signature
from ..ir.units import bytes_text, seconds_text
from ..passes.planning.alternatives import Alternative, Alternatives, Decided, NoSuchDecision, Question
from ..passes.planning.candidate_compiler import CandidateCompiler
from ..passes.planning.notes import Refused
from ..passes.planning.records import Chosen
from ..passes.search.constraints import is_pinned
from ..passes.search.pins import add_pins
from ..passes.step.step_view import cluster_of_module
from .cli_arguments import tool_error
from .cli_console import print_report, working
from .ir_input import load_module
from .plan_folder import WHOLE, again, read_report, verify_search

NEAREST = 3
"""The number of names that are suggested for an unknown one."""

FASTER = 1e-4
"""The relative difference below which an alternative does not count as faster."""

CHANGED = 1e-3
"""The relative difference between the written and the rebuilt plan's step time above which a remark is printed."""


def explain_command(options: Namespace) -> int:
    """Print why a plan was chosen or, for a value or op, its decision and the alternatives."""
    folder = Path(options.plan)
    report = _report(folder)
    if options.value is None:
        shown = _whole_plan(report)
    else:
        shown = _one_decision(_answer(folder, report, options.value), report, options.value)
    if options.json:
        options.answer(shown.record)
    else:
        print_report(*shown.parts)
    return 0


@dataclass(frozen=True)
class Shown:
    """An answer as text, and as a record for JSON."""

    parts: list[Table | str]
    record: Mapping[str, object]


def _report(folder: Path) -> PlanReport:
    """Return the `plan.json` of a plan that a search over plans made; DiagnosticError if there is none."""
    path, report = folder / "plan.json", read_report(folder, "predicted_step_s")
    again_hint = f"plan again: {again(report, folder)}"
    if "chosen_candidate" not in report:
        raise tool_error(f"{path} was written by an older version, without the data that explain needs", again_hint)
    if report["chosen_candidate"] is None:
        reason = "it was not made by search-plan, so there are no alternatives to compare"
        raise tool_error(
            f"{folder}: {reason}", f"{again_hint}, without --pipeline, --algorithm and a preset for --pins"
        )
    read_report(folder, *WHOLE)
    verify_search(report, folder, again_hint)
    return report


def _whole_plan(report: PlanReport) -> Shown:
    reasons = why_not(report)
    record = {
        "chosen": report["chosen"],
        "step": report["predicted_step_s"],
        "compute": report["predicted_compute_s"],
        "exposed": report["predicted_exposed_communication_s"],
        "peak_bytes": report["peak"]["bytes"],
        "bound": report["bound_s"],
        "gap": report["gap"],
        "candidates": len(report["candidates"]),
        "why_not": [each.as_dict() for each in reasons],
    }
    hint = "cost of another decision: shardwright explain DIR VALUE, for a parameter or the result of an op"
    return Shown([*plan_parts(report, reasons), hint], record)


def _answer(folder: Path, report: PlanReport, name: str) -> Alternatives:
    """Return the decision on a value or op, and its alternatives."""
    path = folder / UNDECIDED
    if not path.exists():
        hint = f"plan again: {again(report, folder)}"
        raise tool_error(f"{path} is missing (the step before any decision)", hint)
    with working(f"explaining {name}") as phase:
        phase("reading the step")
        module = load_module(str(path))
        cluster = cluster_of_module(module)
        try:
            record = report["chosen_candidate"]
            assert record is not None, "_report refuses plans without a search"
            chosen = Chosen.read(record, cluster.mesh.name)
            if chosen.pins and not is_pinned(module):
                add_pins(module, chosen.pins)
            bench = CandidateCompiler(module, cluster).keeping(chosen.candidate.layout.keep)
            return Question(bench, chosen.candidate, name, phase).answer()
        except NoSuchDecision as error:
            found = closest(name, error.known, most=NEAREST, cutoff=0.5)
            near = f"did you mean {' or '.join(found)}? " if found else ""
            raise tool_error(str(error), f"{near}step.mlir has the names" if error.known else "") from error
        except (KeyError, TypeError, ValueError, PassFailedException, Refused) as error:
            hint = "plan again, because the plan may have been written by another version"
            raise tool_error(f"the plan of {folder} cannot be reproduced: {error}", hint) from error


def _one_decision(found: Alternatives, report: PlanReport, name: str) -> Shown:
    """Return the decision on a value or op, and the steps with its best alternatives."""
    parts: list[Table | str] = [_decided(found, f"{name} in {report['chosen']}")]
    if found.others:
        parts.append(_others(found))
    record = {
        "decided": [_decided_record(each) for each in found.decided],
        "step": found.seconds,
        "states": found.count,
        "alternatives": [_alternative_record(each, found.seconds) for each in found.others],
        "remarks": _remarks(found, report),
    }
    return Shown([*parts, *legend_tables([report["chosen"]]), *record["remarks"]], record)


def _decided(found: Alternatives, title: str) -> Table:
    """Return a table of the decision: the home of values, or the shardings of an op's operands and results."""
    if not isinstance(found.decided[0].state, Signature):
        table = Table("value", "home", "working copy", title=title)
        for each in found.decided:
            table.add_row(_named(each), Text(str(each.state)), Text(_copy(each)))
        return table
    table = Table("op", "value", "shape", "sharding", title=title)
    for each in found.decided:
        for index, (value, sharding) in enumerate(_sides(each)):
            made, _, shape = value.rpartition(" ")
            table.add_row(f"{_named(each)}: {each.op}" if index == 0 else "", Text(made), shape, Text(sharding))
    return table


def _named(each: Decided) -> str:
    return each.name if each.stage is None else f"{each.name} (stage {each.stage})"


def _copy(each: Decided) -> str:
    if each.working is None:
        return "the same"
    return f"{each.working}, made again for backward" if each.regathered else str(each.working)


def _sides(each: Decided) -> Iterator[tuple[str, str]]:
    """Yield the operands and results of an op with their shardings."""
    assert isinstance(each.state, Signature)
    for value, sharding in zip(each.operands, each.state.operands, strict=True):
        yield f"takes {value}", str(sharding)
    for value, sharding in zip(each.results, each.state.results, strict=True):
        yield f"makes {value}", str(sharding)


def _others(found: Alternatives) -> Table:
    title = f"instead, all else free to adapt (the plan: {seconds_text(found.seconds)})"
    table = Table("alternative", "step", "difference", "exposed", "peak", title=title)
    for each in found.others:
        if each.seconds is None or each.exposed is None or each.peak_bytes is None:
            table.add_row(Text(str(each.state)), "-", f"infeasible: {each.why_none}", "-", "-")
            continue
        peak = bytes_text(each.peak_bytes) + ("" if each.fits else ", does not fit")
        by = difference(each.seconds - found.seconds, found.seconds)
        table.add_row(Text(str(each.state)), seconds_text(each.seconds), by, seconds_text(each.exposed), peak)
    return table


def _remarks(found: Alternatives, report: PlanReport) -> list[str]:
    """Return remarks about facts that a reader would otherwise have to derive from the numbers."""
    remarks: list[str] = []
    best = found.others[0] if found.others else None
    if best is None:
        remarks.append("there is no alternative: the rule, the shape or a pin allows no other choice")
    elif best.fits and best.seconds is not None and best.seconds < found.seconds * (1.0 - FASTER):
        by = difference(best.seconds - found.seconds, found.seconds)
        remarks.append(f"an alternative is faster than the plan: with {best.state} the step is {by}")
    if found.count > (shown := len(found.others)) + 1:
        remarks.append(f"the {shown} of {found.count} alternatives that the search's objective prefers are shown")
    planned = report["predicted_step_s"]
    if abs(found.seconds - planned) > CHANGED * planned:
        rebuilt, was = seconds_text(found.seconds), seconds_text(planned)
        remarks.append(f"the rebuilt plan takes {rebuilt}, but {was} when it was written, perhaps by another version")
    return remarks


def _decided_record(each: Decided) -> dict[str, object]:
    found: dict[str, object] = {"name": each.name, "stage": each.stage}
    if isinstance(each.state, Sharding):
        working = str(each.working) if each.working is not None else None
        return {**found, "home": str(each.state), "working": working, "regathered": each.regathered}
    operands = [value.rpartition(" ")[0] for value in each.operands]
    return {**found, "op": each.op, "operands": operands, "signature": str(each.state)}


def _alternative_record(each: Alternative, step: float) -> dict[str, object]:
    return {
        "state": str(each.state),
        "objective": each.objective,
        "step": each.seconds,
        "difference": each.seconds - step if each.seconds is not None else None,
        "exposed": each.exposed,
        "peak_bytes": each.peak_bytes,
        "fits": each.fits,
        "why_none": each.why_none,
    }
