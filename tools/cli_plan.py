"""`shardwright import` and `shardwright plan`."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from ..api.compile import CompiledStep, PlanOptions, compile_step, import_training_step
from ..api.finalists import compile_finalists, measured_here
from ..api.plan_report import PlanReport, mesh_text, plan_rows
from ..api.plan_tables import legend_tables, measured_table, rows_table
from ..api.steps import find_step
from ..api.training_step import TrainingStep
from ..api.why_not import figures
from ..dialects import train
from ..dialects.compute import python_value, shape_of
from ..dialects.step import argument_attributes, sharding_of
from ..dialects.text import module_text
from ..ir.cluster import Cluster
from ..ir.cluster_file import find_cluster
from ..ir.text_file import write_atomically
from ..ir.units import bytes_text, seconds_text
from ..lowering.interpreter.interpreter import find_function
from ..passes.add_cluster import add_cluster
from ..passes.analysis.coverage import coverage
from ..passes.planning.summary import Tried
from .cli_arguments import command_line, plan_arguments
from .cli_console import plan_progress, print_report, process_began, working

MOST_ROWS = 8
"""The number of largest parameters and of best candidates that are listed."""

_MOST_PROCESSES = 8
"""The maximum number of processes that try candidates in parallel."""


def import_command(options: Namespace) -> int:
    """Write the IR of a step."""
    cluster = find_cluster(options.cluster) if options.cluster else None
    with working(f"importing {options.step}"):
        module = import_training_step(_step(options, options.step), **_plan_arguments(options))
        if cluster is not None:
            add_cluster(module, cluster)
        text = module_text(module)
    write_text(text, options.output)
    if options.coverage:
        write_atomically(Path(options.coverage), json.dumps(coverage(module), indent=2) + "\n")
    return 0


def plan_command(options: Namespace) -> int:
    """Plan a step, write its files, and print a summary."""
    compiled = planned(options, find_cluster(options.cluster))
    folder = compiled.save(options.out, process_began())
    if options.json:
        options.answer({"folder": str(folder), **compiled.report})
        return 0
    parts: list[Table | str] = [summary(compiled.report), placements(compiled)]
    lost = [Tried.from_dict(entry) for entry in compiled.report["candidates"] if "step" in entry and entry["why"]]
    next_best = sorted(lost, key=lambda candidate: candidate.step or 0.0)[:MOST_ROWS]
    if next_best:
        parts.append(alternatives(compiled.report, next_best))
    if measured := compiled.report.get("measured", []):
        parts.append(measured_table(measured))
    shown = (*(candidate.name for candidate in next_best), *(run["plan"] for run in measured))
    parts += legend_tables([compiled.report["chosen"], *shown])
    ranks, compiles = compiled.report["ranks"], hasattr(options, "compile")
    torchrun = f"{folder}/program.py is for torchrun with {ranks} ranks"
    here = command_line("run", folder, *(["--compile"] if compiles else []))
    print_report(*parts, f"{torchrun}{' and --compile' if compiles else ''}; on this machine: {here}")
    return 0


def planned(options: Namespace, cluster: Cluster) -> CompiledStep:
    """Plan the step that a command line names, and show progress."""
    spec = getattr(options, "step", None) or options.target
    with working(f"planning {spec}") as phase, plan_progress(phase):
        arguments = {"processes": side_processes(), **_plan_arguments(options)}
        most = arguments.pop("measure", 1)
        plan_options = PlanOptions(**arguments)
        step = _step(options, spec)
        name = spec.rpartition(":")[2]
        if most > 1:
            finalists = compile_finalists(step, cluster, plan_options, most, name=name, step_spec=spec, observe=phase)
            phase(f"running {len(finalists)} plans on {finalists[0].report['ranks']} processes")
            return measured_here(finalists, spec)
        return compile_step(step, cluster, plan_options, name=name, step_spec=spec, observe=phase)


def side_processes() -> int:
    """Return the number of processes of this machine that plan in parallel."""
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)


def _step(options: Namespace, spec: str) -> TrainingStep:
    """Return the step that a command line names, with the options for it."""
    step, dtype = find_step(spec), getattr(options, "reduce_dtype", None)
    return step if dtype is None else replace(step, reduce_dtype=dtype)


def _plan_arguments(options: Namespace) -> dict[str, Any]:
    """Return the plan options of a command line, with the dtype as torch's."""
    arguments = plan_arguments(options)
    return {**arguments, "dtype": getattr(torch, arguments["dtype"])} if "dtype" in arguments else arguments


def write_text(text: str, output: str) -> None:
    """Write to a file atomically, or to standard output if that is `-`."""
    if output == "-":
        sys.stdout.write(text)
    else:
        write_atomically(Path(output), text)


def summary(report: PlanReport) -> Table:
    """Return a table of the predicted time, memory and traffic of a plan."""
    mesh = mesh_text(report)
    rows = {
        **plan_rows(report),
        **{f"of it {role}": bytes_text(size) for role, size in report["peak"]["roles"].items()},
        **{f"{kind} of a rank": bytes_text(sent) for kind, sent in report["collective_bytes"].items()},
        **({"ranks that idle": ", ".join(map(str, report["idle"]))} if report["idle"] else {}),
        "planned in": seconds_text(time.time() - process_began()),
    }
    return rows_table(f"{report['name']} on {report['cluster']} ({mesh})", rows)


def alternatives(report: PlanReport, next_best: Sequence[Tried]) -> Table:
    """Return a table of the next best candidates and why they lost; all candidates are in `plan.json`."""
    title = f"of {len(report['candidates'])} candidates"
    table = Table("next best", "step", "exposed", "peak", "why not", title=title)
    for candidate in next_best:
        table.add_row(candidate.name, *figures(candidate), candidate.why)
    return table


def placements(compiled: CompiledStep) -> Table:
    """Return a table of the largest parameters' shardings; names that differ only in numbers share a row."""
    func = find_function(compiled.module)
    alike: dict[tuple[str, tuple[int, ...], str], list[str]] = {}
    for argument, roles in zip(func.body.block.args, argument_attributes(func), strict=True):
        if train.PARAM in roles:
            name = str(python_value(roles[train.PARAM]))
            key = (re.sub(r"\d+", "*", name), shape_of(argument), str(sharding_of(argument)))
            alike.setdefault(key, []).append(name)
    count = sum(map(len, alike.values()))
    table = Table("parameter", "shape", "sharding", title=f"the largest of {count} parameters")
    rows = sorted(alike.items(), key=lambda row: -math.prod(row[0][1]) * len(row[1]))
    for (pattern, shape, sharding), names in rows[:MOST_ROWS]:
        name = names[0] if len(names) == 1 else f"{pattern} ({len(names)})"
        table.add_row(name, "x".join(map(str, shape)), sharding)
    return table
