"""Samplers: all ranks together see each global batch once, and each rank sees its own rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from shardwright import runtime as rt
from shardwright.runtime.batches import LocalRows, ShareSampler, batch_rows, no_rows, part_of_batch
from shardwright.runtime.plan import PlanError

MESH = rt.Mesh.of(gpu=4)


def batch_plan(*shardings: str) -> rt.Plan:
    """Return a plan for a batch of six rows, with one item for each sharding."""
    items = (rt.Value(role="batch", name=str(i), shape=(6, 3), sharding=each) for i, each in enumerate(shardings))
    return rt.Plan(name="rows", mesh=MESH, inputs=tuple(items), outputs=())


UNEVEN = '[{"gpu"}, {}], offsets={0: [0, 3, 5, 5, 6]}'


@given(st.integers(6, 40), st.integers(0, 3), st.one_of(st.none(), st.integers(0, 9)))
def test_ranks_together_see_every_batch_once(length: int, epoch: int, seed: int | None):
    plan, seen = batch_plan(UNEVEN), list[list[list[int]]]()
    for rank in range(4):
        count, rows = batch_rows(plan, rank)
        sampler = ShareSampler(length, count, rows, seed)
        sampler.set_epoch(epoch)
        seen.append(list(sampler))
        assert len(seen[-1]) == len(sampler) == length // 6
    assert [len(part) for parts in seen for part in parts[:1]] == [3, 2, 0, 1]
    together = [index for parts in zip(*seen, strict=True) for part in parts for index in part]
    assert len(set(together)) == len(together) == length // 6 * 6


def test_epochs_have_different_orders():
    first, second = ShareSampler(12, 6, range(6)), ShareSampler(12, 6, range(6))
    assert list(first) == list(second)
    second.set_epoch(1)
    assert list(first) != list(second)
    assert list(ShareSampler(12, 6, range(1, 3), seed=None)) == [[1, 2], [7, 8]]


def test_sampled_rows_equal_the_steps_part_of_the_global_batch():
    plan, data = batch_plan(UNEVEN), torch.arange(36.0).view(12, 3)
    for rank in range(4):
        count, rows = batch_rows(plan, rank)
        if not rows:
            continue
        loader = DataLoader(TensorDataset(data), batch_sampler=ShareSampler(12, count, rows, seed=None))
        for number, batch in enumerate(loader):
            mine = part_of_batch(plan.inputs[0], LocalRows(batch), MESH, rank)
            whole = {"0": data[6 * number : 6 * number + 6]}
            assert torch.equal(mine, part_of_batch(plan.inputs[0], whole, MESH, rank))


def test_a_rank_without_rows_takes_an_empty_batch():
    plan = batch_plan(UNEVEN, UNEVEN)
    empty = no_rows(plan)
    assert part_of_batch(plan.inputs[1], LocalRows(empty), MESH, 2).shape == (0, 3)


def test_another_number_of_rows_is_refused():
    plan = batch_plan(UNEVEN)
    with pytest.raises(PlanError, match=r"expects the rows 3 to 5 of the batch that belong to rank 1, \[2, 3\]"):
        part_of_batch(plan.inputs[0], LocalRows([torch.ones(3, 3)]), MESH, 1)
    with pytest.raises(PlanError, match=r"expects the global batch, \[6, 3\]"):
        part_of_batch(plan.inputs[0], [torch.ones(2, 3)], MESH, 1)


def test_items_with_other_rows_are_refused():
    with pytest.raises(PlanError, match="different rows of the items"):
        batch_rows(batch_plan(UNEVEN, '[{"gpu"}, {}]'), 0)


@pytest.mark.parametrize(
    ("length", "rows", "message"), [(5, range(2), "no full batch"), (9, range(5, 8), "not within")]
)
def test_impossible_samplers_are_refused(length: int, rows: range, message: str):
    with pytest.raises(ValueError, match=message):
        ShareSampler(length, 6, rows)


def test_a_stage_in_the_middle_takes_no_rows_of_the_batch_of_the_others():
    first = batch_plan(UNEVEN)
    middle = rt.Plan(name="middle", mesh=rt.Mesh.of(gpu=2), inputs=(), outputs=(), ranks=(4, 5))
    count, _ = batch_rows(first, 0)
    assert batch_rows(middle, 0, (first, middle)) == (count, range(0))
    sampler = ShareSampler(4 * count, *batch_rows(middle, 1, (first, middle)))
    assert list(sampler) == [[]] * 4
    assert no_rows(middle) == []
