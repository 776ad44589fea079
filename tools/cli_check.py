"""`shardwright check` and `shardwright check-rule`."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict
from importlib import import_module
from math import isinf
from pathlib import Path

import torch
from rich.table import Table
from xdsl.utils.exceptions import DiagnosticException

from ..api.checking.cases import CheckCase, CheckResult
from ..api.checking.check import check_interpreted, check_on_ranks
from ..api.checking.rule import check_rule
from ..api.steps import find_step
from ..ir.cluster_file import find_cluster
from .cli_arguments import mesh_of, plan_arguments, told, tool_error
from .cli_console import print_report, working

MOST_RANKS = 64


def check_command(options: Namespace) -> int:
    """Check one plan and print its errors against one device; return 1 if they exceed the tolerance."""
    mesh = mesh_of(options.mesh)
    if mesh.device_count > MOST_RANKS:
        message = f"--mesh {options.mesh} has {mesh.device_count} devices; a check runs at most {MOST_RANKS}"
        raise tool_error(message)
    case = CheckCase(
        step=options.step,
        mesh=mesh,
        dtype=getattr(torch, options.dtype),
        optimizer=options.optimizer,
        steps=options.steps,
        cluster=find_cluster(options.cluster) if options.cluster else None,
        **plan_arguments(options),
    )
    find_step(options.step)
    with working(f"checking {case}"):
        if options.backend == "interpreter":
            result = check_interpreted(case)
        else:
            (result,) = check_on_ranks([case], case.mesh.device_count)
    if result.message:
        raise tool_error(result.message)
    if options.json:
        errors = [{**asdict(worst), "allowed": result.allows(worst)} for worst in result.errors]
        about = {"case": str(result.case), "steps": result.case.steps, "passed": result.passed}
        options.answer({**about, "tolerance": result.tolerance, "rounding": dict(result.own), "errors": errors})
    else:
        _print(result)
    return 0 if result.passed else 1


def check_rule_command(options: Namespace) -> int:
    """Check a sharding rule against its op; return 1 if a signature refutes it."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    for module in options.modules:
        with told(ImportError, f"--import {module}: "):
            import_module(module)
    with told((ValueError, DiagnosticException)):
        verdict = check_rule(options.op, options.rule, samples=options.samples)
    if verdict.holds:
        print(f"holds: {verdict.checked} signatures checked")
        return 0
    print(f"REFUTED by signature {verdict.checked} of those checked:\n{verdict.counterexample}")
    return 1


def _print(result: CheckResult) -> None:
    case = result.case
    table = Table("value", "largest error", "tensor", "step", title=str(case))
    for worst in result.errors:
        style = "" if result.allows(worst) else "bold red"
        table.add_row(worst.kind, f"{worst.error:.2g}", worst.name, str(worst.step), style=style)
    parts: list[Table | str] = [table]
    if not any(worst.kind == "parameter" for worst in result.errors):
        parts.append(
            "parameters were not compared, because in float32 AdamW amplifies the noise of zero gradients to full steps"
            " (--dtype float64 compares them)"
        )
    if result.own:
        own = ", ".join(f"{kind} {error:.2g}" for kind, error in result.own.items())
        parts.append(f"rounding alone changes a run on one device by {own}, which is therefore allowed")
    if any(isinf(worst.error) for worst in result.errors):
        parts.append(
            "an error of inf is a tensor of one device or of the plan that is missing, misshapen or not finite"
        )
    elif not result.passed and case.dtype is torch.float32:
        parts.append(
            "in float32 rounding may switch a ReLU or a max-pool at a tie; --dtype float64 distinguishes this from a"
            " wrong plan"
        )
    verdict = "agrees with" if result.passed else "DIFFERS from"
    print_report(*parts, f"{verdict} one device over {case.steps} steps (tolerance {result.tolerance:g})")
