"""Boundaries that move along one dim: the interpreter moves the same slices as ranks do."""

import pytest
import torch

from shardwright.ir.collectives import CollectiveKind, single_step
from shardwright.ir.mesh import Mesh
from shardwright.ir.sharding import parse_sharding
from shardwright.lowering.interpreter.local_values import assemble, split, take_step

MESH = Mesh.of(node=2, gpu=2)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ('[{"gpu"}, {}], offsets={0: [0, 1, 8]}', '[{"gpu"}, {}], offsets={0: [0, 6, 8]}'),
        ('[{}, {"gpu"}], offsets={1: [0, 0, 6]}', '[{}, {"gpu"}]'),
        ('[{"node", "gpu"}, {}]', '[{"node", "gpu"}, {}], offsets={0: [0, 7, 7, 8, 8]}'),
        ('[{"node", "gpu"}, {}], offsets={0: [0, 1, 4, 4, 8]}', '[{"node", "gpu"}, {}]'),
        ('[{"gpu"}, {"node"}], offsets={0: [0, 1, 8]}', '[{"gpu"}, {"node"}], offsets={0: [0, 8, 8]}'),
    ],
)
def test_parts_arrive_where_they_belong(source: str, target: str):
    value = torch.arange(48.0).view(8, 6)
    step = single_step(parse_sharding(source), parse_sharding(target), MESH)
    assert step is not None
    assert step.kind is CollectiveKind.ALL_TO_ALL
    after = take_step(step, split(value, step.source, MESH))
    assert torch.equal(assemble(after, check=True), value)
