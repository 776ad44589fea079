"""Rows of lists by position: the runtime's functions equal the importer's definitions, on full values and on parts."""

import pytest
import torch

from shardwright.lowering.fused import list_ops
from shardwright.runtime import indexed as row_lists

ROWS, PLACES, WIDTH = 7, 9, 5
PARTS = ((0, 3, ROWS), (3, 4, ROWS), (4, ROWS, ROWS))
"""Start, stop and size: three parts of unequal sizes."""


def operands(lists: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows, values and places."""
    generator = torch.Generator().manual_seed(lists)
    rows, values = (torch.randn(lists, n, WIDTH, generator=generator, dtype=dtype) for n in (ROWS, PLACES))
    return rows, values, torch.randint(ROWS, (lists, PLACES), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("lists", [0, 1, 3])
def test_each_list_is_looked_up_separately(lists: int, dtype: torch.dtype):
    rows, values, places = operands(lists)
    rows, values = (3 * rows).to(dtype), (3 * values).to(dtype)
    sums = torch.zeros(lists, ROWS, WIDTH, dtype=dtype)
    for each, at, value in zip(sums, places, values, strict=True):
        for place, row in zip(at.tolist(), value, strict=True):
            each[place] += row
    for module in (list_ops, row_lists):
        taken = module.take_rows(rows, places)
        assert taken.shape == values.shape
        for found, each, at in zip(taken, rows, places, strict=True):
            torch.testing.assert_close(found, each[at])
        torch.testing.assert_close(module.add_rows(values, places, ROWS), sums)


@pytest.mark.parametrize("lists", [1, 3])
def test_parts_of_the_rows_add_up_to_the_whole(lists: int):
    rows, values, places = operands(lists)
    taken, added = row_lists.take_rows(rows, places), row_lists.add_rows(values, places, ROWS)
    for module in (list_ops, row_lists):
        found = torch.zeros_like(taken)
        for part in PARTS:
            held = slice(part[0], part[1])
            found += module.take_rows(rows[:, held], places, part=part)
            torch.testing.assert_close(module.add_rows(values, places, ROWS, part=part), added[:, held])
        torch.testing.assert_close(found, taken)


def test_operands_that_are_not_contiguous_are_not_changed():
    rows, values, places = (each.transpose(0, 1).contiguous().transpose(0, 1) for each in operands(3))
    before = rows.clone(), values.clone(), places.clone()
    torch.testing.assert_close(row_lists.take_rows(rows, places), list_ops.take_rows(rows, places))
    torch.testing.assert_close(row_lists.add_rows(values, places, ROWS), list_ops.add_rows(values, places, ROWS))
    assert all(torch.equal(*pair) for pair in zip(before, (rows, values, places), strict=True))


@pytest.mark.parametrize("part", [None, (0, 3, ROWS)])
def test_a_place_out_of_range_is_an_error(part: tuple[int, int, int] | None):
    rows, values, places = operands(1)
    places[0, 0] = ROWS
    with pytest.raises((RuntimeError, IndexError)):
        row_lists.take_rows(rows if part is None else rows[:, :3], places, part=part)
    with pytest.raises((RuntimeError, IndexError)):
        row_lists.add_rows(values, places, ROWS, part=part)


@pytest.mark.parametrize("lists", [1, 3])
def test_a_part_without_rows_gets_an_empty_result(lists: int):
    _, values, places = operands(lists)
    added = row_lists.add_rows(values, places, ROWS, part=(ROWS, ROWS, ROWS))
    assert added.shape == (lists, 0, values.shape[2])
