"""`shardwright simulate`: the predicted time of a step and its breakdown, also for changed numbers of the cluster."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import DiagnosticException, PassFailedException

from ..api.files import PLANNED, UNDECIDED, plan_digest
from ..api.plan_record import RECORD, PlanRecord
from ..dialects.pipe import FragmentOp, TransferOp
from ..dialects.placed import parts_of
from ..ir.cluster import Cluster
from ..ir.cluster_file import find_cluster
from ..ir.measured_steps import MeasuredSteps
from ..ir.what_if import Sweep, WhatIfError, changed, parse_change, parse_sweep
from ..passes.add_cluster import add_cluster
from ..passes.analysis.simulation.measured import NotThisStepError
from ..passes.analysis.simulation.results import Simulation
from ..passes.analysis.simulation.simulate import simulate_module
from ..passes.errors import describe
from ..passes.pipeline import run_pipeline
from ..passes.search.constraints import strip_pins
from ..passes.step.step_view import cluster_of_module
from ..passes.strip_resharding import strip_decisions
from .cli_arguments import plan_arguments, refuse_for_planned, told, tool_error
from .cli_console import print_report, working
from .ir_input import load_module
from .measured_tables import measured_record, measured_tables, read_measured, with_measured
from .simulation_tables import (
    Point,
    plot_points,
    plot_timeline,
    points_table,
    require_matplotlib,
    step_record,
    sweep_record,
    tables,
)


def simulate_command(options: Namespace) -> int:
    """Simulate a step, or a sweep over a number of the cluster, and print the results."""
    if options.plot is not None:
        require_matplotlib()
    target = _target(options)
    module = target.planned
    with told(PassFailedException):
        own = cluster_of_module(module)
    cluster = _changed(_given(options, own), options.changes)
    if options.measured is not None and (options.sweep is not None or options.replan):
        raise tool_error("--measured compares one step; leave out --sweep and --replan")
    if options.sweep is not None and options.trace is not None:
        raise tool_error("--trace shows one step; leave out --sweep")
    if options.sweep is not None:
        with told(WhatIfError, "--sweep: "):
            sweep = parse_sweep(options.sweep, cluster)
        points = _swept(target, cluster, sweep, options)
        if options.plot is not None:
            plot_points(options.sweep, points, Path(options.plot))
        if options.json:
            options.answer(sweep_record(options.sweep, points))
        else:
            print_report(points_table(options.sweep, points))
        return 0
    if options.replan:
        module = _replanned(target, cluster, options)
    simulation = _simulated(module, cluster)
    measured = read_measured(options.measured) if options.measured is not None else None
    if options.plot is not None:
        plot_timeline(simulation, Path(options.plot))
    shown, record = _results(simulation, measured, options)
    if options.trace is not None:
        _write_trace(simulation, measured, Path(options.trace))
    if options.json:
        options.answer(record)
        return 0
    print_report(*shown)
    if options.trace is not None:
        print_report(f"{options.trace} opens in https://ui.perfetto.dev")
    return 0


@dataclass(frozen=True)
class _Target:
    """
    The step to simulate.

    Args:
        undecided: the step before any decision, for planning again, or None if it is unknown; then planning again first
            undoes the decisions of `planned`.
    """

    planned: ModuleOp
    undecided: ModuleOp | None = None


def _target(options: Namespace) -> _Target:
    """Return the IR of a plan's folder, of an IR file, or of a step that is planned first."""
    path = Path(options.target)
    if _is_planned(path):
        if not options.replan:
            refuse_for_planned(options, options.target)
        file = path / PLANNED if path.is_dir() else path
        with working(f"reading {file}"):
            undecided = _undecided(path) if options.replan else None
            return _Target(load_module(str(file)), undecided)
    if options.cluster is None:
        message = f"{options.target} is neither a plan nor an IR file, and planning it as a step needs a cluster"
        raise tool_error(message, "give --cluster FILE")
    from .cli_plan import planned

    cluster = _changed(find_cluster(options.cluster), options.changes if options.replan else [])
    compiled = planned(options, cluster)
    return _Target(compiled.module, compiled.undecided)


def _undecided(folder: Path) -> ModuleOp | None:
    """Return the step of a folder before any decision, or None if it is missing or the planned step was edited."""
    if not (folder / UNDECIDED).exists():
        return None
    try:
        PlanRecord.read(folder / RECORD, plan_digest(folder))
    except (OSError, ValueError):
        return None
    return load_module(str(folder / UNDECIDED))


def _is_planned(target: Path) -> bool:
    """Return whether a target is the folder of a plan or an IR file, and not a step that must be planned."""
    return target.is_dir() or target.suffix == ".mlir"


def _given(options: Namespace, own: Cluster) -> Cluster:
    """Return the requested cluster on the mesh of the module; a step that was just planned already has it."""
    if options.cluster is None or not _is_planned(Path(options.target)):
        return own
    requested = find_cluster(options.cluster)
    if (sizes := requested.mesh.spatial) != own.mesh.spatial:
        wanted, has = (", ".join(f"{axis.name}={axis.size}" for axis in axes) for axes in (own.mesh.spatial, sizes))
        raise tool_error(f"{options.target} is planned for the mesh {wanted}, but {options.cluster} has {has}")
    return replace(requested, name=own.name, mesh=own.mesh)


def _changed(cluster: Cluster, changes: Sequence[str]) -> Cluster:
    for text in changes:
        with told(WhatIfError, f"--set {text}: "):
            cluster = changed(cluster, *parse_change(text))
    return cluster


def _swept(target: _Target, cluster: Cluster, sweep: Sweep, options: Namespace) -> list[Point]:
    """Return a point for every value; it has an error in the place of a simulation if planning fails."""
    points: list[Point] = []
    with working(f"sweeping {sweep.path}") as phase:
        for value in sweep.values:
            phase(f"{value:.4g}")
            new_cluster = changed(cluster, sweep.path, value)
            try:
                planned = _replanned(target, new_cluster, options) if options.replan else target.planned
            except DiagnosticException as error:
                points.append(Point(value, None, str(error)))
            else:
                points.append(Point(value, _simulated(planned, new_cluster)))
    return points


def _replanned(target: _Target, cluster: Cluster, options: Namespace) -> ModuleOp:
    """Plan the target for another cluster by the usual passes; pins of the options replace the pins of the target."""
    from ..api.compile import PlanOptions

    asked = PlanOptions(**plan_arguments(options))
    if asked.algorithm is None:
        # Sweeps plan many times, so they search only on the existing mesh.
        asked = replace(asked, algorithm="fixed" if asked.pins else "eliminate")
    module = (target.undecided if target.undecided is not None else target.planned).clone()
    for op in module.walk():
        if isinstance(op, FragmentOp | TransferOp) or parts_of(op):
            reason = "belongs to a loop over micro-batches or to a pipeline"
            raise tool_error(f"--replan: {describe(op)} {reason}, so the step cannot be planned again; keep the plan")
    add_cluster(module, cluster)
    if asked.pins is not None:
        strip_pins(module)
    strip_decisions(module)
    with told(PassFailedException, "--replan: "):
        run_pipeline(Context(), module, asked.passes(cluster))
    return module


def _simulated(module: ModuleOp, cluster: Cluster) -> Simulation:
    simulations = simulate_module(module, cluster)
    if len(simulations) != 1:
        raise tool_error(f"the module has {len(simulations)} step functions, expected one")
    return simulations[0]


def _results(
    simulation: Simulation, measured: MeasuredSteps | None, options: Namespace
) -> tuple[list[Table], dict[str, object]]:
    """Return the results as tables and for JSON; of them only the requested form is made."""
    if measured is None:
        return ([], step_record(simulation)) if options.json else (list(tables(simulation)), {})
    with told(NotThisStepError, f"--measured {options.measured} belongs to another step: "):
        if options.json:
            return [], {**step_record(simulation), "measured": measured_record(simulation, measured)}
        return list(measured_tables(simulation, measured)), {}


def _write_trace(simulation: Simulation, measured: MeasuredSteps | None, path: Path) -> None:
    from ..ir.text_file import write_atomically
    from ..passes.analysis.simulation.trace import trace

    content = trace(simulation)
    content = content if measured is None else with_measured(content, simulation, measured)
    write_atomically(path, json.dumps(content) + "\n")
