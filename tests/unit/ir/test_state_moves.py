"""Moved state is bitwise equal, and no byte is moved unnecessarily."""

import itertools
import random

import pytest
import torch
from boxes import relative

from shardwright.ir.mesh import Mesh
from shardwright.ir.sharding import DimSharding, Sharding, local_slices
from shardwright.ir.state_moves import Box, SpreadState, kept_ranks, state_moves

SHAPES = {"w": (12, 7), "b": (13,), "s": (), "t": (5, 6, 4)}


def boxes(name: str, mesh: Mesh, draw: random.Random) -> dict[int, Box]:
    """Return the boxes of a randomly sharded value: any dims split by any axes, also unevenly."""
    shape, axes = SHAPES[name], list(mesh.names)
    draw.shuffle(axes)
    given: list[list[str]] = [[] for _ in shape]
    for axis in axes:
        if shape and draw.random() < 0.7:
            given[draw.randrange(len(shape))].append(axis)
    dims: list[DimSharding] = []
    for size, names in zip(shape, given, strict=True):
        parts = mesh.parts(names)
        cuts = sorted(draw.randrange(size + 1) for _ in range(parts - 1))
        uneven = (0, *cuts, size) if names and (size < parts or draw.random() < 0.5) else None
        dims.append(DimSharding(tuple(names), uneven))
    sharding = Sharding(tuple(dims))
    ranks = range(mesh.device_count)
    return {rank: tuple((s.start, s.stop) for s in local_slices(shape, sharding, mesh, rank)) for rank in ranks}


def part(whole: torch.Tensor, box: Box) -> torch.Tensor:
    return whole[tuple(slice(*dim) for dim in box)]


@pytest.mark.parametrize("seed", range(20))
def test_the_state_arrives_bit_by_bit(seed: int):
    draw = random.Random(seed)
    meshes = [Mesh.of(a=2, b=2), Mesh.of(a=3), Mesh.of(a=2, b=3), Mesh.of(a=1), Mesh.of(a=5)]
    old_mesh, new_mesh = draw.choice(meshes), draw.choice(meshes)
    before = kept_ranks(old_mesh.device_count, new_mesh.device_count)
    old = [SpreadState(name, boxes(name, old_mesh, draw), 4) for name in SHAPES]
    new = [SpreadState(name, boxes(name, new_mesh, draw), 4) for name in SHAPES]
    wholes = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    found = state_moves(old, new, before)

    lost = {(name, rank) for name, rank, _ in found.lost}
    for source, value in zip(old, new, strict=True):
        whole = wholes[value.name]
        held = {rank: part(whole, box).clone() for rank, box in source.boxes.items()}
        for rank, box in value.boxes.items():
            arrived = torch.full(part(whole, box).shape, torch.nan)
            filled = torch.zeros(arrived.shape, dtype=torch.int64)
            if rank in before:
                mine = source.boxes[before[rank]]
                common = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(box, mine, strict=True))
                if all(begin < end for begin, end in common):
                    arrived[relative(common, box)] = held[before[rank]][relative(common, mine)]
                    filled[relative(common, box)] += 1
            for move in found.moves:
                if (move.name, move.receiver) == (value.name, rank):
                    assert move.sender in before.values()
                    sent = held[move.sender][relative(move.box, source.boxes[move.sender])]
                    assert move.bytes == 4 * sent.numel()
                    arrived[relative(move.box, box)] = sent
                    filled[relative(move.box, box)] += 1
            if (value.name, rank) not in lost:
                assert torch.equal(arrived, part(whole, box))
                assert (filled == 1).all()
    if not found.lost:
        assert found.bytes == found.bound
    assert old_mesh.device_count > new_mesh.device_count or not found.lost


def test_the_same_plan_moves_nothing():
    spread = [SpreadState("w", boxes("w", Mesh.of(a=2, b=2), random.Random(1)), 4)]
    found = state_moves(spread, spread, kept_ranks(4, 4))
    assert (found.bytes, found.bound, found.lost) == (0, 0, ())


def test_state_of_a_lost_rank_is_reported():
    halves = {0: ((0, 6),), 1: ((6, 12),)}
    found = state_moves([SpreadState("w", halves, 4)], [SpreadState("w", {0: ((0, 12),)}, 4)], kept_ranks(2, 1, [1]))
    assert found.lost == (("w", 0, ((0, 6),)),)
    assert (found.bytes, found.kept) == (0, 24)


def test_senders_take_turns():
    everywhere = {rank: ((0, 8),) for rank in range(2)}
    more = {rank: ((0, 8),) for rank in range(6)}
    found = state_moves([SpreadState("w", everywhere, 4)], [SpreadState("w", more, 4)], kept_ranks(2, 6))
    assert [len(list(each)) for _, each in itertools.groupby(sorted(m.sender for m in found.moves))] == [2, 2]


@pytest.mark.parametrize("remaining", [[0, 0], [4], [-1]])
def test_remaining_ranks_must_be_old_ranks(remaining: list[int]):
    with pytest.raises(ValueError, match="expected different ranks below 4"):
        kept_ranks(4, 2, remaining)
