"""Reading what `shardwright plan` wrote, which a user may have edited since."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, cast

from ..api.plan_report import PlanReport
from ..ir.cluster_fields import shown
from ..ir.text_file import read_text
from .cli_arguments import TOOL, command_line
from .diagnostics import Diagnostic, DiagnosticError

Shape: TypeAlias = "type | tuple[Shape, ...] | list[Shape] | dict[str, Shape]"
"""
What an entry must be: a type; one of several; a list of such entries; or an object whose entries are such. It need not
have those whose key ends in `?`, and has no others but where there is a key `*`, which is of all others.
"""

_NUMBER = (float, int)
_SIZES: Shape = {"*": int}
_PINS: Shape = [{"value?": str, "sharding?": str, "preset?": str, "axes?": [str]}]
_CHOICE: Shape = {"name": str, "pins": _PINS, "weights": {"*": (*_NUMBER, bool)}, "balanced": bool, "fits": bool}
_CANDIDATE: Shape = {
    "mesh": _SIZES,
    "mode": str,
    "parts": int,
    "stages": int,
    "fused": bool,
    "schedule?": str,
    "keep?": _NUMBER,
    "choice": _CHOICE,
    "pins": _PINS,
    "own_mesh": _SIZES,
}
_FAMILY: Shape = {"mode": str, "strategy": str, "mesh": _SIZES, "balanced": bool}
_TRIED: Shape = {
    "name": str,
    "why": str,
    "step?": _NUMBER,
    "exposed?": _NUMBER,
    "peak_bytes?": _NUMBER,
    "memory_bytes?": _NUMBER,
    "fits?": bool,
    "family?": _FAMILY,
}
_REPORT: dict[str, Shape] = {
    "name?": str,
    "step?": (str, type(None)),
    "mesh": _SIZES,
    "ranks?": int,
    "cluster?": str,
    "predicted_step_s?": _NUMBER,
    "predicted_compute_s?": _NUMBER,
    "predicted_exposed_communication_s?": _NUMBER,
    "chosen?": (str, type(None)),
    "bound_s?": (*_NUMBER, type(None)),
    "bound_of?": (str, type(None)),
    "gap?": (*_NUMBER, type(None)),
    "chosen_candidate?": (_CANDIDATE, type(None)),
    "candidates?": [_TRIED],
    "peak_bytes?": [_NUMBER],
    "peak?": {"bytes": _NUMBER, "at": str, "roles": {"*": _NUMBER}, "*": object},
    "*": object,
}
"""What `plan.json` holds, of what is read again."""

WHOLE = tuple(name.removesuffix("?") for name in _REPORT if name != "*")
"""The entries of a plan that a search over plans made."""


def read_report(folder: Path, *needed: str) -> PlanReport:
    """`plan.json` of a plan, with its mesh and the entries that are needed; DiagnosticError where there is none."""
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
    if (fault := _fault(report, _REPORT, "")) is not None:
        raise _error(f"{path} was changed, or was written by another version: {fault}", folder)
    return cast("PlanReport", report)


def _fault(value: object, shape: Shape, place: str) -> str | None:
    """Where a value is not of its shape; None where it is."""
    match shape:
        case type():
            is_one = isinstance(value, shape) and not (isinstance(value, bool) and shape in (int, float))
            # No float has more bits.
            is_one = is_one and not (isinstance(value, int) and value.bit_length() > 1000)
            return None if is_one else f"{place} is {shown(value)}, expected {_name(shape)}"
        case tuple():
            faults = [_fault(value, each, place) for each in shape]
            inner = next(filter(None, faults), None) if isinstance(value, dict) else None
            return None if None in faults else inner or f"{place} is {shown(value)}, expected {_name(shape)}"
        case list():
            if not isinstance(value, list):
                return f"{place} is {shown(value)}, expected a list"
            entries = enumerate(cast("list[object]", value))
            return next(filter(None, (_fault(each, shape[0], f"{place}[{at}]") for at, each in entries)), None)
        case dict():
            if not isinstance(value, dict):
                return f"{place} is {shown(value)}, expected an object"
            return next(filter(None, _faults(cast("Mapping[str, object]", value), shape, place)), None)


def _faults(value: Mapping[str, object], shape: Mapping[str, Shape], place: str) -> Iterator[str | None]:
    for name, each in value.items():
        of = shape.get(name, shape.get(f"{name}?", shape.get("*")))
        at = f"{place}.{shown(name)[1:-1]}".lstrip(".")
        yield _fault(each, of, at) if of is not None else f"{at} is not expected"
    for name in shape:
        if name != "*" and not name.endswith("?") and name not in value:
            yield f"{place} has no {name!r}".strip()


def _name(shape: Shape) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
    if isinstance(shape, tuple):
        return " or ".join(map(_name, shape))
    return names[shape] if isinstance(shape, type) else "an object"


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _error(message: str, folder: Path) -> DiagnosticError:
    hint = f"write one with: {command_line('plan', 'STEP', '--cluster', 'FILE', '--out', folder)}"
    return DiagnosticError(Diagnostic(message, TOOL, hint=hint))
