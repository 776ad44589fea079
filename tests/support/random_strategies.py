"""Random strategies: every op of a step gets one of its signatures, and the results are compared with eager PyTorch."""

import random
from collections.abc import Callable

import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.checking.cases import SEED, CheckCase, imported
from shardwright.api.checking.comparison import Worst, measure
from shardwright.api.checking.interpreted import InterpretedRun
from shardwright.api.checking.reference import EagerRun
from shardwright.api.training_step import TrainingStep
from shardwright.dialects.compute import SIGNATURE
from shardwright.dialects.sharding_attrs import SignatureAttr
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.signatures import signatures
from shardwright.ir.submesh import on_mesh
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.comparisons import find_comparisons
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import StepView, step_functions
from shardwright.passes.verification import first_fault


def with_random_signatures(module: ModuleOp, mesh: Mesh, seed: int) -> ModuleOp:
    """Return a copy of a module with a random signature for every op, drawn with `seed`."""
    chosen, drawn = module.clone(), random.Random(seed)
    view = StepView(step_functions(chosen)[0], mesh)
    comparisons = find_comparisons(view)
    for op in view.ops:
        signature = drawn.choice(signatures(comparisons.rule(op), mesh))
        op.attributes[SIGNATURE] = SignatureAttr.of(mesh.name, signature)
    assert first_fault(chosen) is None
    return chosen


class RandomStrategies:
    """Random strategies of a step (a name means a shipped step) on a mesh, compared with eager PyTorch in float64."""

    def __init__(self, step: str | Callable[[], TrainingStep], mesh: Mesh) -> None:
        self.case, self.mesh = CheckCase(step, mesh, dtype=torch.float64), mesh
        self.module = imported(self.case)
        add_cluster(self.module, on_mesh(find_cluster("local-4"), mesh))
        run_pipeline(Context(), self.module, "prepare")
        self.batch = next(self.case.batches())
        self.expected = EagerRun(self.case.training_step(), torch.float64, SEED).step(self.batch)

    def error(self, seed: int) -> Worst:
        """Return the largest error of loss, gradients, states and parameters after one step with strategy `seed`."""
        module = with_random_signatures(self.module, self.mesh, seed)
        run_pipeline(Context(), module, "program,finish")
        model = EagerRun(self.case.training_step(), torch.float64, SEED).model
        found = InterpretedRun(module, model, explicit=True).step(self.batch)
        return max(measure(found, self.expected, 1).values(), key=lambda worst: worst.error)
