"""Strategies of AutoDDL's paper, as found by its algorithms here."""

from functools import cache
from pathlib import Path

import pytest
from ir_files import context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult

from shardwright.api.compile import import_training_step
from shardwright.dialects.compute import ComputeOp
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import parse_mesh
from shardwright.ir.sharding import Sharding
from shardwright.ir.submesh import on_mesh
from shardwright.models.mlp import mlp_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import step_views

DENSE = (25088, 4096, 4096, 1000)
"""The widths of VGG13's dense layers."""

BATCH = 256
"""Eight images for each of 32 devices (section 5.2.2)."""

CONVOLUTIONS_SPLIT_THE_BATCH = """
[[pin]]
value = "batch.0"
sharding = '[{"x", "y"}, {}]'
"""


@cache
def dense_layers() -> ModuleOp:
    """Return a training step of the dense layers on 32 devices, as its search sees it."""
    module = import_training_step(mlp_step(DENSE, batch=BATCH))
    run_pipeline(context(), module, "prepare")
    add_cluster(module, on_mesh(find_cluster("autoddl-daint-32"), parse_mesh("x=4,y=8")))
    return module


@pytest.mark.parametrize("algorithm", ["metropolis", "coordinate-descent", "eliminate"])
def test_dense_layers_of_vgg13_reduce_no_weight_gradients(algorithm: str, tmp_path: Path):
    """Figure 7: weight matrices are never replicated, so their gradients are not summed over devices."""
    pins = tmp_path / "pins.toml"
    pins.write_text(CONVOLUTIONS_SPLIT_THE_BATCH)
    module = dense_layers().clone()
    run_pipeline(context(), module, f'search-strategy{{algorithm={algorithm} pins="{pins}"}}')
    ((view, _),) = step_views(module)
    gradients: dict[str, Sharding] = {}
    for name, op, operand in view.grads():
        value = op.operands[operand]
        if name.endswith("weight"):
            assert isinstance(value, OpResult)
            assert isinstance(value.op, ComputeOp)
            assert value.op.signature is not None
            gradients[name] = value.op.signature.results[value.index]
    assert len(gradients) == 3
    for sharding in gradients.values():
        assert not sharding.partial_axes
        assert {axis for dim in sharding.dims for axis in dim.axes} == {"x", "y"}
