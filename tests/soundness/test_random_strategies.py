"""
Any strategy computes the same step: every op of a model is given a signature at random.

So are signatures checked together, resharding between any two of them, and the passes that make it ops.
"""

import random

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import import_training_step, on_mesh
from shardwright.dialects.compute import SIGNATURE, ComputeOp
from shardwright.dialects.sharding_attrs import SignatureAttr
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh, parse_mesh
from shardwright.ir.signatures import signatures
from shardwright.lowering.interpreter import find_function, interpret
from shardwright.lowering.random_inputs import random_inputs
from shardwright.lowering.verify_numerics import check_pass
from shardwright.models.registry import training_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.verification import first_fault


def imported(name: str, mesh: Mesh) -> ModuleOp:
    """Return a shipped step with all its gradients as results, on a mesh, ready for a strategy."""
    module = import_training_step(training_step(name), gradients=True)
    add_cluster(module, on_mesh(find_cluster("local-4"), mesh))
    run_pipeline(Context(), module, "decompose-mean,canonicalize,cse,dce")
    return module


def with_random_signatures(module: ModuleOp, mesh: Mesh, seed: int) -> ModuleOp:
    chosen, drawn = module.clone(), random.Random(seed)
    for op in chosen.walk():
        if isinstance(op, ComputeOp):
            found = drawn.choice(signatures(op.rule(), mesh))
            op.attributes[SIGNATURE] = SignatureAttr.of(mesh.name, found)
    assert first_fault(chosen) is None
    return chosen


@pytest.mark.parametrize(
    ("name", "mesh", "seeds"),
    [
        ("mlp-tiny", "2x2", range(5)),
        ("mlp-tiny", "x=3", range(5)),
        ("gpt2-tiny", "2x2", range(1)),
        ("bert-tiny", "x=3", range(1)),
        ("vit-tiny", "x=4", range(1)),
        ("vgg19-tiny", "x=3", range(1)),
    ],
)
def test_random_signatures_compute_the_same_step(name: str, mesh: str, seeds: range):
    spatial = parse_mesh(mesh)
    given = imported(name, spatial)
    for seed in seeds:
        module = with_random_signatures(given, spatial, seed)
        check_pass(given, module, "random signatures")
        run_pipeline(Context(), module, "insert-resharding,select-collectives,insert-frees")
        check_pass(given, module, "insert-resharding,select-collectives,insert-frees")
        inputs = random_inputs(find_function(module))
        interpret(module, inputs, check_replicas=True, explicit=True)
