"""Grids: the part of a value that each rank holds at each micro-batch."""

import pytest

from shardwright.ir.mesh import Mesh
from shardwright.ir.sharding import parse_sharding
from shardwright.ir.unit_tasks import Grid, Task, in_each_part


def test_a_grid_has_a_device_for_every_rank_and_part():
    grid = Grid.of(Mesh.of(gpu=2).over(micro=3), (4, 7))
    assert grid.mesh == Mesh.of(micro=3, gpu=2)
    assert grid.ranks == (4, 7, 4, 7, 4, 7)
    assert grid.parts == (0, 0, 1, 1, 2, 2)


def test_parts_count_all_axes_of_time():
    grid = Grid.of(Mesh.of(gpu=1).over(micro=2, half=2), (5,))
    assert grid.parts == (0, 1, 2, 3)


def test_the_slices_of_a_rank_at_a_part():
    grid = Grid.of(Mesh.of(gpu=2).over(micro=2), (3, 2))
    rows = parse_sharding('[{"micro", "gpu"}, {}]')
    assert grid.slices((8, 5), rows, 2, 1) == (slice(6, 8), slice(0, 5))
    assert grid.slices((8, 5), rows, 3, 0) == (slice(0, 2), slice(0, 5))
    with pytest.raises(KeyError):
        grid.slices((8, 5), rows, 0, 0)


def test_the_number_of_elements_of_a_task():
    assert Task(0, ((1, 3), (0, 5)), 0, (1,)).elements == 10
    assert Task(0, (), 0, (1,)).elements == 1
    assert Task(0, ((2, 2), (0, 5)), 0, (1,)).elements == 0


def test_tasks_of_equal_parts_move_by_the_rows_of_a_part():
    first = [Task(0, ((0, 2), (0, 5)), 0, (1, 2)), Task(0, ((2, 4), (0, 5)), 3, (1,))]
    assert in_each_part(2, (4, 0), first) == (
        *first,
        Task(1, ((4, 6), (0, 5)), 0, (1, 2)),
        Task(1, ((6, 8), (0, 5)), 3, (1,)),
    )
