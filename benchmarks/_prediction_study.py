"""A study of predicted and measured steps, in phases. Each phase keeps its results in a folder."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from _back_ends import BackEnd, restricted
from _prediction_cases import SEARCHED_FORMS, Group, mesh_of, meshes, plan
from _prediction_ranks import Site, Turn, quiet_steps
from _prediction_steps import STEPS
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import PlanOptions
from shardwright.api.finalists import MOST, compile_finalists, fastest
from shardwright.ir.cluster import Cluster, Device
from shardwright.ir.cluster_file import load_cluster
from shardwright.ir.mesh import parse_mesh
from shardwright.passes.analysis.simulation.timeline import Timeline, longest, predict, predict_pipeline
from shardwright.passes.step.step_view import cluster_of_module, mesh_of_module, step_functions, step_views
from shardwright.tools.ir_input import load_module

PHASES = ("profile", "plan", "measure", "predict")
BACK_ENDS: tuple[BackEnd, ...] = ("analytic", "fitted", "table")

_PASSES = 3
"""Number of passes over all ops and steps. The speed of the machine drifts over minutes, so each pass measures all."""

_FINALIST_SECONDS = 2.0
"""Seconds of the run of each finalist, before the fastest of them is taken."""

_BY_FIT = "by-fit"
"""Suffix of plans that are searched before their ops are measured, and of the cluster with their measured ops."""


@dataclass(frozen=True)
class Study:
    """
    Groups of plans at a site, with the folder of their results.

    Each plan runs for some seconds, and others are for profiling the cluster and the ops of a mesh.
    """

    site: Site
    groups: Sequence[Group]
    folder: Path
    seconds: float = 6.0
    profile_seconds: float = 90.0
    table_seconds: float = 36.0

    def run(self, until: str = PHASES[-1]) -> list[dict[str, Any]]:
        """Run the phases up to `until`, and return the rows if the last phase is `predict`."""
        phases = PHASES[: PHASES.index(until) + 1]
        for mesh in meshes(self.groups):
            self.profile(mesh)
        if "plan" in phases:
            self.plan()
        for number in range(_PASSES) if "measure" in phases else ():
            for mesh in meshes(self.groups):
                self.profile_ops(mesh, f"ops{number}")
            for group in self.groups:
                self.measure(group, number)
        return [row for group in self.groups for row in self.rows(group)] if "predict" in phases else []

    def cluster_path(self, mesh: str, ops: str = "") -> Path:
        """Return the path of the cluster file of a mesh; `ops` names a measurement of ops in the file."""
        name = mesh.replace(",", "-").replace("=", "")
        return self.folder / "clusters" / f"{name}{f'-{ops}' if ops else ''}.toml"

    def cluster(self, mesh: str) -> Cluster:
        """Return the cluster of a mesh, with the median over the passes for each measured op."""
        cluster = load_cluster(self.cluster_path(mesh))
        passes = [load_cluster(self.cluster_path(mesh, f"ops{number}")) for number in range(_PASSES)]
        devices: list[Device] = []
        for kind, device in enumerate(cluster.devices):
            tables = [dict(measured.devices[kind].table) for measured in passes]
            table = ((key, statistics.median(times[key] for times in tables if key in times)) for key in tables[0])
            devices.append(replace(device, table=tuple(table)))
        return replace(cluster, devices=tuple(devices))

    def plan_path(self, group: Group, form: str, *, by_fit: bool = False) -> Path:
        """Return the folder of a plan. `by_fit` selects the first search of a plan that is searched twice."""
        suffixed = by_fit and form in SEARCHED_FORMS
        return self.folder / "plans" / group.name / (f"{form} {_BY_FIT}" if suffixed else form)

    def profile(self, mesh: str) -> None:
        """Measure the cluster of a mesh."""
        path = self.cluster_path(mesh)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._profile(mesh, self.profile_seconds, "-o", path)

    def plan(self) -> None:
        """Write IR and program of all plans. Searched plans are searched again once the ops of all are measured."""
        for group in self.groups:
            for form in group.forms:
                path = self.plan_path(group, form, by_fit=True)
                if not path.exists():
                    cluster = load_cluster(self.cluster_path(mesh_of(group, form)))
                    plan(STEPS[group.step](), form, cluster).save(path)
        for mesh in meshes(self.groups):
            self.profile_ops(mesh, _BY_FIT, by_fit=True)
        for group in self.groups:
            for form in SEARCHED_FORMS.intersection(group.forms):
                self._plan_measured(group, form)

    def _plan_measured(self, group: Group, form: str) -> None:
        """Compile the best plans of several kinds with measured ops, run each, and save the fastest."""
        path = self.plan_path(group, form)
        if path.exists():
            return
        cluster = load_cluster(self.cluster_path(mesh_of(group, form), _BY_FIT))
        name = form.replace(" ", "_")
        finalists = compile_finalists(STEPS[group.step](), cluster, PlanOptions(), MOST, name=name)
        seconds = [
            _quartile(self.site.measure(group.step, group.ranks, finalist.program, _FINALIST_SECONDS))
            for finalist in finalists
        ]
        best, report = fastest([finalist.report for finalist in finalists], seconds)
        replace(finalists[best], report=report).save(path)

    def profile_ops(self, mesh: str, name: str, *, by_fit: bool = False) -> None:
        """Measure exactly the ops of all plans of a mesh."""
        path = self.cluster_path(mesh, name)
        if not path.exists():
            pairs = [(group, form) for group in self.groups for form in group.forms if mesh_of(group, form) == mesh]
            words = [word for pair in pairs for word in ("--ops-of", self.plan_path(*pair, by_fit=by_fit))]
            self._profile(mesh, self.table_seconds / _PASSES, "--cluster", self.cluster_path(mesh), *words, "-o", path)

    def _profile(self, mesh: str, seconds: float, *words: str | Path) -> None:
        options = ("--mesh", mesh, "--seconds", seconds, *words)
        self.site.profile(parse_mesh(mesh).device_count, [str(word) for word in options])

    def measure(self, group: Group, number: int) -> None:
        """Run the plans of a group one after the other, in a different order in each pass."""
        path = self._measured_path(group, number)
        if path.exists():
            return
        forms = random.Random(number).sample(group.forms, len(group.forms))
        turns: dict[str, list[dict[str, Any]]] = {}
        for form in forms:
            program = (self.plan_path(group, form) / "program.py").read_text()
            measured = self.site.measure(group.step, group.ranks, program, self.seconds / _PASSES)
            turns[form] = [asdict(turn) for turn in measured]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(turns))

    def _measured_path(self, group: Group, number: int) -> Path:
        return self.folder / "measured" / f"{group.name} {number}.json"

    def rows(self, group: Group) -> Iterator[dict[str, Any]]:
        """Yield a row for each plan of a group: measured and predicted milliseconds of a step."""
        measured = [json.loads(self._measured_path(group, number).read_text()) for number in range(_PASSES)]
        for form in group.forms:
            turns = [Turn(**turn) for each in measured for turn in each[form]]
            yield {
                "group": group.name,
                "plan": form,
                "steps": len(quiet_steps(turns)),
                "measured ms": 1e3 * _quartile(turns),
                **{f"{name} ms": 1e3 * longest(each)["step"] for name, each in self.predicted(group, form).items()},
            }

    def predicted(self, group: Group, form: str) -> dict[str, list[Timeline]]:
        """Return the timelines of a plan's stages, as each back end predicts them."""
        module = load_module(str(self.plan_path(group, form) / "step.mlir"))
        cluster = self.cluster(mesh_of(group, form))
        return {name: predicted_stages(module, cluster, name) for name in BACK_ENDS}


def _quartile(turns: Sequence[Turn]) -> float:
    """Return the lower quartile of the steps of quiet turns, in seconds."""
    return statistics.quantiles(quiet_steps(turns), n=4)[0]


def predicted_stages(module: ModuleOp, known: Cluster, back_end: BackEnd) -> list[Timeline]:
    """Return the timelines of the stages of a module's step (one if it has none), as a back end predicts them."""
    (func,) = step_functions(module)
    views = step_views(module)
    if views[0][0].stage is None:
        return [predicted(module, restricted(known, back_end))]
    clusters = [replace(cluster, devices=known.devices) for _, cluster in views]
    whole = restricted(replace(cluster_of_module(module), devices=known.devices), back_end)
    return predict_pipeline(func, [restricted(part, back_end) for part in clusters], whole)


def predicted(module: ModuleOp, cluster: Cluster) -> Timeline:
    """Return the timeline of a step without stages on a cluster."""
    (func,) = step_functions(module)
    # The plan's mesh may have a temporal axis, which the mesh of a cluster file has not.
    return predict(func, replace(cluster, mesh=mesh_of_module(module)))
