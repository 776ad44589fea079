"""Steps as IR: import a step, and run passes on it for a cluster."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from shardwright.api.compile import import_training_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import Pipeline, run_pipeline


def after(module: ModuleOp, *passes: str | ModulePass) -> ModuleOp:
    """Run passes on a module without verification, and return the module."""
    run_pipeline(Context(), module, Pipeline.of(*passes), verify_each=False)
    return module


def prepared(step: TrainingStep) -> ModuleOp:
    """Return a step after the passes that come before any decision."""
    return after(import_training_step(step), "prepare")


def planned(step: ModuleOp, cluster: Cluster, *passes: str | ModulePass) -> ModuleOp:
    """Return a copy of a step on a cluster after the passes."""
    module = step.clone()
    add_cluster(module, cluster)
    return after(module, *passes)
