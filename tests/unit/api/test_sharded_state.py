"""Shardings as placements of DTensors, and the state of a step without ranks."""

from __future__ import annotations

import pytest
import torch
from split_cluster import split_cluster
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

import shardwright as sw
from shardwright.api.sharded_state import placements_of
from shardwright.ir.mesh import Mesh
from shardwright.models.registry import training_step
from shardwright.runtime.plan import SpreadTensor

MESH = Mesh.of(dp=2, tp=3)

SHARDINGS: dict[tuple[tuple[int, ...], str], tuple[Placement, ...] | None] = {
    ((6, 12), "[{}, {}]"): (Replicate(), Replicate()),
    ((6, 12), '[{}, {"tp"}]'): (Replicate(), Shard(1)),
    ((6, 12), '[{"tp"}, {"dp"}]'): (Shard(1), Shard(0)),
    ((6, 12), '[{}, {"dp", "tp"}]'): (Shard(1), Shard(1)),
    ((6, 12), '[{}, {"tp", "dp"}]'): None,
    ((6, 10), '[{}, {"tp"}]'): None,
    ((6, 12), '[{}, {"dp"}], offsets={1: [0, 5, 12]}'): None,
    ((6, 12), '[{"dp"}, {}], unreduced={"tp"}'): (Shard(0), Partial("sum")),
}


@pytest.mark.parametrize(("shape", "sharding"), SHARDINGS)
def test_a_sharding_has_the_expected_placements(shape: tuple[int, ...], sharding: str):
    found = placements_of(SpreadTensor("param", "w", shape, sharding=sharding), MESH)
    assert found == SHARDINGS[shape, sharding]


def test_temporal_axes_are_not_axes_of_a_device_mesh():
    found = placements_of(SpreadTensor("param", "w", (6,), sharding='[{"dp"}]'), MESH.over(micro=4))
    assert found == (Shard(0), Replicate())


def test_a_single_process_has_plain_tensors():
    made = training_step("mlp-tiny")
    step = sw.parallelize(made.model, made.loss, made.optimizer, made.batch, cluster=split_cluster(Mesh.of(gpu=1)))
    assert step.device_mesh is None
    before = {name: value.clone() for name, value in step.named_parameters() if isinstance(value, torch.Tensor)}
    assert before.keys() == dict(made.build_model().named_parameters()).keys()
    step(made.batch)
    now = dict(step.named_parameters())
    assert not any(torch.equal(now[name], value) for name, value in before.items())  # pyright: ignore[reportArgumentType]
    state = step.optimizer_state_dict()
    assert state["state"].keys() == before.keys()
    step.load_state_dict(before)
    assert all(torch.equal(step.gather(name), value) for name, value in before.items())
