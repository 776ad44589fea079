"""The order of unit tasks: consistent and inconsistent lists."""

import re

import pytest

from shardwright.ir.task_order import TaskList, TaskOrder, in_turn, listed_by_slice
from shardwright.ir.unit_tasks import Task

TASKS = [Task(0, ((0, 2),), 0, (4, 5)), Task(0, ((2, 4),), 1, (4, 5)), Task(0, ((4, 6),), 1, (6,))]


def order(**lists: list[int]) -> TaskOrder:
    """Return an order; the keywords name the ranks of each list as `r0_1`."""
    return TaskOrder(
        tuple(TaskList(tuple(map(int, ranks[1:].split("_"))), tuple(numbers)) for ranks, numbers in lists.items())
    )


def test_consistent_lists_give_a_sequence():
    given = order(r0=[0], r1=[2, 1], r4_5=[1, 0], r6=[2])
    given.verify(TASKS)
    assert given.sequence(TASKS) == [2, 1, 0]
    assert in_turn(TASKS, given) == [TASKS[2], TASKS[1], TASKS[0]]
    assert in_turn(TASKS, None) == TASKS


def test_tasks_without_a_wait_come_first():
    given = order(r0=[0], r1=[1, 2], r4_5=[0, 1], r6=[2])
    assert given.sequence(TASKS) == [0, 1, 2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (order(r0=[0], r1=[1], r4_5=[0, 1], r6=[2]), "ranks [1] lack task 2"),
        (order(r0=[0], r1=[1, 2, 1], r4_5=[0, 1], r6=[2]), "ranks [1] have task 1 twice"),
        (order(r0=[0, 2], r1=[1, 2], r4_5=[0, 1], r6=[2]), "ranks [0] have task 2, but none of them takes part in it"),
        (order(r0=[0], r1=[1, 2], r4_5=[0, 1, 7], r6=[2]), "ranks [4, 5] have task 7, but none of them takes"),
        (order(r0=[0], r1=[1, 2], r4=[0, 1], r6=[2]), "rank 5 takes part in task 0 and is in no list"),
        (order(r0=[0], r1=[1, 2], r4_5=[0, 1], r5_6=[0, 1, 2]), "rank 5 is in two lists"),
        (
            order(r0=[0], r1=[1, 2], r4=[0, 1], r5=[1, 0], r6=[2]),
            "ranks [5] do task 1 before task 0 and ranks [4] do task 0 before task 1: each would wait for the other",
        ),
        (
            order(r0_1=[0, 2, 1], r4_5=[1, 0], r6=[2]),
            "ranks [4, 5] do task 1 before task 0 and ranks [0, 1] do task 2 before task 1 and ranks [0, 1] do task 0"
            " before task 2: each would wait for the other",
        ),
    ],
)
def test_inconsistent_lists_are_refused(given: TaskOrder, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        given.verify(TASKS)


def test_ranks_that_share_a_nic_share_a_list():
    tasks, lists = listed_by_slice([TASKS[2], TASKS[1], TASKS[0]], lambda rank: rank // 4)
    assert tasks == TASKS
    assert lists == order(r0_1=[2, 1, 0], r4_5_6=[2, 1, 0])


def test_there_are_no_lists_if_no_port_is_shared():
    parts = [Task(part, ((part, part + 1),), rank, (rank + 4,)) for part in range(3) for rank in range(2)]
    assert listed_by_slice(parts, lambda rank: rank) == (parts, None)
