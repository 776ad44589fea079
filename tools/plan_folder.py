"""Reading what `shardwright plan` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .cli_arguments import TOOL
from .diagnostics import Diagnostic, DiagnosticError


def read_report(folder: Path, *needed: str) -> dict[str, Any]:
    """`plan.json` of a plan, with its mesh and the entries that are needed; DiagnosticError where there is none."""
    path = folder / "plan.json"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        _ = [report[name] for name in ("mesh", *needed)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = f"write one with: {TOOL} plan STEP --cluster FILE --out {folder}"
        raise DiagnosticError(Diagnostic(f"{path} is not a plan: {error}", TOOL, hint=hint)) from error
    return report
