"""The contents of `plan.json`."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from html import escape
from typing import Any, NotRequired, TypedDict

from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, ModuleOp

from ..dialects.compute import python_value
from ..dialects.mesh_ops import MeshOp
from ..dialects.pipe import IDLE
from ..dialects.ratios import ratios_of
from ..dialects.staged import Stages
from ..dialects.step import CHOSEN, RUNNERS_UP, SEARCH
from ..ir.cluster import Cluster
from ..ir.units import bytes_text, seconds_text
from ..ir.versions import version_of
from ..passes.analysis.memory import MemoryPeak, peak_memory
from ..passes.analysis.memory_roles import Roles
from ..passes.analysis.simulation.timeline import longest, predict, predict_pipeline
from ..passes.planning.legend import legend
from ..passes.planning.records import CandidateRecord
from ..passes.planning.summary import TriedRecord, read_plan
from ..passes.step.step_view import cluster_of_module, step_views


class RatiosReport(TypedDict):
    """The shares of the devices along an axis, in a segment of the model."""

    mesh: str
    segment: int
    axis: str
    shares: list[float]


class HeldReport(TypedDict):
    """The bytes of a value."""

    value: str
    bytes: int


class PeakReport(TypedDict):
    """The peak memory: the op during which it occurs, and the bytes held then, by role and by value."""

    bytes: int
    at: str
    roles: dict[str, int]
    largest: list[HeldReport]


class MeasuredReport(TypedDict):
    """A plan that was run for comparison."""

    plan: str | None
    predicted_step_s: float
    measured_step_s: float


def step_text(report: PlanReport) -> str:
    """Return the predicted step time as text, with its range if known: `314 ms (283 ms to 413 ms)`."""
    text, expected = seconds_text(report["predicted_step_s"]), report.get("predicted_range_s")
    return f"{text} ({' to '.join(map(seconds_text, expected))})" if expected else text


def mesh_text(report: PlanReport) -> str:
    """Return the axes of the mesh of a plan with their sizes, as `node=2, gpu=4`."""
    return ", ".join(f"{axis}={size}" for axis, size in report["mesh"].items()) or "one device"


def plan_name(report: PlanReport) -> str:
    """Return the name of the plan, or a note that the user's pins or passes have decided everything."""
    return report["chosen"] or "as pinned"


class PlanReport(TypedDict):
    """A plan: times in seconds, sizes in bytes."""

    name: str
    step: str | None
    mesh: dict[str, int]
    ranks: int
    cluster: str
    stages: list[int]
    idle: list[int]
    ratios: list[RatiosReport]
    pass_seconds: dict[str, float]
    predicted_step_s: float
    predicted_range_s: list[float] | None
    predicted_compute_s: float
    predicted_exposed_communication_s: float
    chosen: str | None
    bound_s: float | None
    bound_of: str | None
    gap: float | None
    chosen_candidate: CandidateRecord | None
    runners_up: list[CandidateRecord]
    candidates: list[TriedRecord]
    legend: NotRequired[dict[str, str]]
    search: dict[str, float | None]
    peak_bytes: list[int]
    peak: PeakReport
    collective_bytes: dict[str, float]
    versions: dict[str, str]
    pipeline: NotRequired[str]
    total_seconds: NotRequired[float]
    measured: NotRequired[list[MeasuredReport]]
    replan: NotRequired[dict[str, Any]]


def plan_rows(report: PlanReport) -> dict[str, str]:
    """Return the name and the figures of a plan; only a search over plans gives a name and a lower bound."""
    peak = report["peak"]
    rows = {
        **({"plan": report["chosen"]} if report["chosen"] else {}),
        "predicted step": step_text(report),
        "of it compute": seconds_text(report["predicted_compute_s"]),
        "of it waiting for communication": seconds_text(report["predicted_exposed_communication_s"]),
    }
    if (bound := report["bound_s"]) is not None and (gap := report["gap"]) is not None:
        rows["no step is shorter than"] = f"{seconds_text(bound)} (gap {gap:.1%}), of {report['bound_of']}"
    rows["peak memory of a rank"] = f"{bytes_text(peak['bytes'])}, in {peak['at']}"
    return rows


def plan_html(report: PlanReport) -> str:
    """Return the figures of a plan as a table in HTML, as notebooks show it."""
    cells = {"model": f"{report['name']} on {report['cluster']}", **plan_rows(report)}
    rows = (f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in cells.items())
    return f"<table>{''.join(rows)}</table>"


def versions() -> dict[str, str]:
    """Return the versions of the packages that make a program."""
    names = ("shardwright", "torch", "xdsl")
    return {**{name: version_of(name) for name in names}, "python": platform.python_version()}


def report(module: ModuleOp, seconds: Mapping[str, float], name: str, step_spec: str | None) -> PlanReport:
    """
    Return the contents of `plan.json` for a finished plan: times in seconds, sizes in bytes.

    `stages` has the number of devices of each stage, and `idle` the ranks that compute nothing. `chosen_candidate`
    reproduces the chosen plan from `global.mlir`, and `runners_up` reproduce the fastest plan of every other kind.
    `legend` explains the terms in the names of `candidates`.

    `bound_s` is a lower bound on the step time of all plans that `bound_of` names. `gap` is the distance between the
    step and the bound, relative to the step. `search` is the report of `search-strategy` if that pass was run by
    itself: sums over ops and collectives without overlap. The compute time of a pipeline is the compute time of its
    busiest stage, and the rest is exposed.
    """
    views = step_views(module)
    (func,) = {view.func: None for view, _ in views}
    whole = cluster_of_module(module)
    search_report, chosen = func.attributes.get(SEARCH), func.attributes.get(CHOSEN)
    search = search_report.data if isinstance(search_report, DictionaryAttr) else {}
    plan = read_plan(func)
    clusters = [cluster for _, cluster in views]
    meshes = {op.sym_name.data: op for op in module.ops if isinstance(op, MeshOp)}
    stages = [meshes[name] for name in Stages(func).names]
    timelines = [predict(func, whole)] if views[0][0].stage is None else predict_pipeline(func, clusters, whole)
    times = longest(timelines)
    roles = Roles(func)
    peaks = [peak_memory(func, it.mesh, stage=view.stage, blocks=it.blocks, roles=roles) for view, it in views]
    kinds = {kind: None for timeline in timelines for kind in timeline.collective_bytes}
    return {
        "name": name,
        "step": step_spec,
        "mesh": {axis.name: axis.size for axis in whole.mesh.axes},
        "ranks": whole.mesh.device_count,
        "cluster": whole.name,
        "stages": [len(mesh.ranks) for mesh in stages if mesh.sym_name.data != IDLE],
        "idle": [rank for mesh in stages if mesh.sym_name.data == IDLE for rank in mesh.ranks],
        "ratios": [
            {"mesh": cluster.mesh.name, "segment": segment, "axis": axis, "shares": list(shares)}
            for _, cluster in views
            for segment, ratios in ratios_of(func, cluster.mesh).items()
            for axis, shares in ratios.shares
        ],
        "pass_seconds": dict(seconds),
        "predicted_step_s": times["step"],
        "predicted_range_s": _range(times, whole),
        "predicted_compute_s": times["compute"],
        "predicted_exposed_communication_s": times["exposed"],
        "chosen": plan.chosen if plan is not None else None,
        "bound_s": plan.bound if plan is not None else None,
        "bound_of": plan.bound_of if plan is not None else None,
        "gap": 1.0 - plan.bound / times["step"] if plan is not None and plan.bound is not None else None,
        "chosen_candidate": python_value(chosen) if chosen is not None else None,
        "runners_up": python_value(others) if (others := func.attributes.get(RUNNERS_UP)) is not None else [],
        "candidates": [candidate.as_dict() for candidate in plan.candidates] if plan is not None else [],
        "legend": legend(candidate.name for candidate in plan.candidates) if plan is not None else {},
        "search": {name: _number(search.get(name)) for name in ("cost", "lower_bound") if name in search},
        "peak_bytes": [size for peak in peaks for size in peak.by_rank],
        "peak": _peak_report(max(peaks, key=lambda peak: peak.bytes)),
        "collective_bytes": {kind: sum(t.collective_bytes.get(kind, 0.0) for t in timelines) for kind in kinds},
        "versions": versions(),
    }


def _range(times: Mapping[str, float], cluster: Cluster) -> list[float] | None:
    """
    Return the expected range of a step in seconds, or None if the cluster was never measured.

    Fits are off by a tenth, and ranks that share cores wait for each other up to three times as long as on average.
    """
    if not any(device.rates for device in cluster.devices):
        return None
    waits = 2 * times["exposed"] if cluster.interference.delays else 0.0
    return [0.9 * times["step"], 1.1 * times["step"] + waits]


def _peak_report(peak: MemoryPeak) -> PeakReport:
    made = peak.op.results[0].name_hint if peak.op.results else None
    return {
        "bytes": peak.bytes,
        "at": f"{peak.op.name} %{made}" if made else peak.op.name,
        "roles": {role.value: size for role, size in peak.by_role.items() if size},
        "largest": [{"value": value.name, "bytes": value.bytes} for value in peak.alive],
    }


def _number(value: object) -> float | None:
    return value.value.data if isinstance(value, FloatAttr) else None
