"""Programs of whole models under random strategies: any signature for any op, on even and uneven meshes."""

import random

import pytest
import torch
import torch.nn.functional as F
from emitted import check_numbers, emit
from launches import names_of
from start_wait import split_collectives
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument

from shardwright.dialects import train
from shardwright.dialects.compute import ComputeOp
from shardwright.dialects.mesh_ops import ClusterOp, MeshOp
from shardwright.dialects.sharding_attrs import ShardingAttr, SignatureAttr
from shardwright.dialects.step import SHARDING, merge_argument_attributes
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh, parse_mesh
from shardwright.ir.signatures import signatures
from shardwright.lowering.capture.calling import batch_items
from shardwright.lowering.capture.capture import capture_step
from shardwright.lowering.importer.step import import_step
from shardwright.lowering.interpreter.interpreter import find_function
from shardwright.models.registry import training_step
from shardwright.passes.insert_frees import InsertFreesPass
from shardwright.passes.insert_resharding import InsertReshardingPass
from shardwright.passes.select_collectives import SelectCollectivesPass


class Grouped(nn.Module):
    """Grouped convolution and norm, shared heads, sums by index and repeats: calls with sizes of parts as arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm = nn.GroupNorm(3, 6)
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 2)
        self.place = nn.Parameter(torch.randn(1, 6, 1, 1))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        images = self.norm(self.depthwise(images)) + self.place.repeat(len(images), 1, 2, 4)
        images = F.pad(F.interpolate(images, scale_factor=2, mode="bilinear"), (1, 1, 1, 1), "reflect")
        tokens = F.adaptive_avg_pool2d(images, (1, 4)).squeeze(2)
        query = self.query(tokens).unflatten(-1, (4, 1)).transpose(1, 2)
        key = self.key(tokens).unflatten(-1, (2, 1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True).transpose(1, 2)
        total = torch.zeros(5, 4).index_add(0, labels, mixed.flatten(2).sum(1))
        return total.pow(2).sum() + F.cross_entropy(images[:, :, 0], labels[:, None].repeat(1, images.size(3)))


def imported(model: str) -> ModuleOp:
    if model == "grouped":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            batch = (torch.randn(4, 6, 2, 4), torch.tensor([0, 3, 1, 3]))
            captured = capture_step(Grouped(), None, lambda p: torch.optim.AdamW(p, lr=1e-3), batch)
        return import_step(captured, batch=batch_items(batch), gradients=True)
    step = training_step(model)
    captured = capture_step(step.model, step.loss, step.optimizer, step.batch)
    return import_step(captured, batch=batch_items(step.batch), gradients=True)


def add_cluster(module: ModuleOp, mesh: Mesh) -> None:
    device = Device("cpu", (("float32", 1e9),), 1e9, 1e9, 0.0)
    links = tuple(Link(axis.name, 1e-6, 1e-9) for axis in mesh.axes)
    cluster = Cluster("cluster", mesh, (device,), (0,) * mesh.device_count, links)
    block = module.body.block
    assert block.first_op is not None
    block.insert_ops_before([MeshOp(mesh), ClusterOp(cluster)], block.first_op)


def choose_at_random(module: ModuleOp, mesh: Mesh, seed: int) -> None:
    """Give every op a random signature, and every parameter and state the home that its update requires."""
    choose, func = random.Random(seed), find_function(module)
    homes: dict[int, dict[str, ShardingAttr]] = {}
    for op in func.body.block.ops:
        if not isinstance(op, ComputeOp):
            continue
        signature = choose.choice(signatures(op.rule(), mesh))
        op.attributes["spmd.signature"] = SignatureAttr.of(mesh.name, signature)
        if isinstance(op, train.TrainOp):
            for value, sharding in zip(op.args, signature.operands, strict=True):
                if isinstance(value, BlockArgument) and sharding.dims:
                    homes[value.index] = {SHARDING: ShardingAttr.of(mesh.name, sharding)}
    merge_argument_attributes(func, homes)


CASES = [
    ("mlp-tiny", "dp=2,tp=2", 1),
    ("mlp-tiny", "3x2", 2),
    ("mlp-tiny", "5", 3),
    ("gpt2-tiny", "2x2", 4),
    ("vit-tiny", "3", 5),
    ("vgg19-tiny", "2", 6),
    ("grouped", "2x2", 7),
    ("grouped", "3", 8),
]
ALWAYS = (3, 4, 6, 7)
"""The seeds that run without `--thorough`: linear layers, attention, convolutions and grouped ops, each once."""


@pytest.mark.parametrize(("model", "axes", "seed"), names_of(CASES, lambda case: case[-1] in ALWAYS))
def test_program_equals_the_imported_step(model: str, axes: str, seed: int) -> None:
    module, mesh, context = imported(model), parse_mesh(axes), Context()
    lowered = module.clone()
    add_cluster(lowered, mesh)
    choose_at_random(lowered, mesh, seed)
    InsertReshardingPass().apply(context, lowered)
    SelectCollectivesPass().apply(context, lowered)
    check_numbers(module, emit(lowered), tolerance=1e-4)
    assert split_collectives(find_function(lowered)) > 10
    InsertFreesPass().apply(context, lowered)
    lowered.verify()
    text = emit(lowered)
    assert "comm.start(" in text
    check_numbers(module, text, tolerance=1e-4)
