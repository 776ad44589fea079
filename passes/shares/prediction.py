"""Predict the time of a step from the phases of its strategy, before its changes of sharding are explicit ops."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from ...dialects.ratios import ratios_of
from ...ir.cluster import Cluster
from ..insert_resharding import insert_resharding
from ..step.step_view import StepView, step_functions, step_views
from ..strip_resharding import strip_function
from .phases import PhaseModel, events_of


def explicit_view(module: ModuleOp, view: StepView, cluster: Cluster) -> StepView:
    """Return a copy of the step, or of its stage, with explicit changes of sharding."""
    copied, name = module.clone(), view.func.sym_name.data
    func = next(func for func in step_functions(copied) if func.sym_name.data == name)
    strip_function(func)
    insert_resharding(StepView(func, view.mesh, view.stage), cluster)
    return StepView(func, view.mesh, view.stage)


def phase_model(module: ModuleOp, view: StepView, cluster: Cluster) -> PhaseModel:
    """Return the phases of a step, or of a stage."""
    return PhaseModel(events_of(explicit_view(module, view, cluster)), cluster)


def predicted_seconds(module: ModuleOp) -> float:
    """Return the seconds of all steps and stages of a module, with their present ratios."""
    models = ((phase_model(module, view, cluster), view) for view, cluster in step_views(module))
    return sum(model.seconds(ratios_of(view.func, view.mesh)) for model, view in models)
