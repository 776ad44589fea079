"""
The order of the unit tasks of a transfer on each rank (cross-mesh 3.2).

Ranks that share a NIC have one list of the tasks that any of them takes part in; each of these ranks, and the NIC, goes
down the list in order. A task begins when it is next in the lists of all of its ranks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

from .unit_tasks import Task


@dataclass(frozen=True)
class TaskList:
    """
    A list of tasks that some ranks run in order.

    Args:
        ranks: ranks of the job that share a NIC.
        tasks: numbers of tasks in the transfer.
    """

    ranks: tuple[int, ...]
    tasks: tuple[int, ...]


@dataclass(frozen=True)
class TaskOrder:
    """The lists of all ranks that take part in a transfer."""

    lists: tuple[TaskList, ...]

    def verify(self, tasks: Sequence[Task]) -> None:
        """Raise ValueError unless lists have every rank once, with all of its tasks once, and do not deadlock."""
        listed = [rank for task_list in self.lists for rank in task_list.ranks]
        if (repeated := _repeated(listed)) is not None:
            raise ValueError(f"rank {repeated} is in two lists, expected one list for each rank")
        own: defaultdict[int, set[int]] = defaultdict(set)
        for number, task in enumerate(tasks):
            for rank in _members(task):
                own[rank].add(number)
        if missing := sorted(own.keys() - set(listed)):
            raise ValueError(f"rank {missing[0]} takes part in task {min(own[missing[0]])} and is in no list")
        for task_list in self.lists:
            _verify_list(task_list, set[int]().union(*(own.get(rank, set[int]()) for rank in task_list.ranks)))
        if len(self.sequence(tasks)) < len(tasks):
            raise ValueError(self._circle(tasks))

    def sequence(self, tasks: Sequence[Task]) -> list[int]:
        """
        Return the numbers of the tasks in one order that agrees with all lists, by earliest start.

        A task takes as long as it has elements. Tasks in a deadlock are left out.
        """
        after: defaultdict[int, list[int]] = defaultdict(list)
        for task_list in self.lists:
            for number, other in pairwise(task_list.tasks):
                after[number].append(other)
        before = Counter(other for others in after.values() for other in others)
        starts: defaultdict[int, int] = defaultdict(int)
        ready = [(0, number) for number in range(len(tasks)) if not before[number]]
        heapify(ready)
        order: list[int] = []
        while ready:
            start, number = heappop(ready)
            order.append(number)
            for other in after[number]:
                starts[other] = max(starts[other], start + tasks[number].elements)
                before[other] -= 1
                if not before[other]:
                    heappush(ready, (starts[other], other))
        return order

    def _circle(self, tasks: Sequence[Task]) -> str:
        """Describe tasks that wait for one another, each with the list that orders it before the next task."""
        stuck = set(range(len(tasks))) - set(self.sequence(tasks))
        before = {b: (a, each) for each in self.lists for a, b in pairwise(each.tasks) if a in stuck and b in stuck}
        at, seen = next(number for number in sorted(stuck) if number in before), list[int]()
        while at not in seen:
            seen.append(at)
            at = before[at][0]
        circle = seen[seen.index(at) :]
        waits = [
            f"ranks {list(before[number][1].ranks)} do task {before[number][0]} before task {number}"
            for number in circle
        ]
        return f"{' and '.join(waits)}: each would wait for the other"


def listed_by_slice(tasks: Sequence[Task], nic: Callable[[int], int]) -> tuple[list[Task], TaskOrder | None]:
    """
    Return the tasks sorted by slice, and lists that keep the given order, or None if the order does not matter.

    It does not matter if no list has two tasks of one part of the temporal axes.

    Args:
        tasks: tasks in start order.
        nic: maps a rank to the NIC that it uses.
    """
    by_slice = sorted(tasks, key=lambda task: (task.part, task.slice, task.sender, task.receivers))
    numbers = {task: number for number, task in enumerate(by_slice)}
    ranks: defaultdict[int, set[int]] = defaultdict(set)
    listed: defaultdict[int, dict[int, None]] = defaultdict(dict)
    for task in tasks:
        for rank in _members(task):
            ranks[nic(rank)].add(rank)
            listed[nic(rank)][numbers[task]] = None
    if all(len({by_slice[number].part for number in each}) == len(each) for each in listed.values()):
        return by_slice, None
    lists = (TaskList(tuple(sorted(ranks[port])), tuple(listed[port])) for port in ranks)
    return by_slice, TaskOrder(tuple(sorted(lists, key=lambda entry: entry.ranks)))


def in_turn(tasks: Sequence[Task], order: TaskOrder | None) -> list[Task]:
    """Return the tasks in an order that agrees with the lists; unchanged if there are no lists."""
    return [tasks[number] for number in order.sequence(tasks)] if order is not None else list(tasks)


def _members(task: Task) -> Iterator[int]:
    yield task.sender
    yield from task.receivers


def _verify_list(each: TaskList, own: set[int]) -> None:
    whose = f"ranks {list(each.ranks)}"
    if (stray := next((number for number in each.tasks if number not in own), None)) is not None:
        raise ValueError(f"{whose} have task {stray}, but none of them takes part in it")
    if (repeated := _repeated(each.tasks)) is not None:
        raise ValueError(f"{whose} have task {repeated} twice")
    if missing := sorted(own - set(each.tasks)):
        raise ValueError(f"{whose} lack task {missing[0]}")


def _repeated(numbers: Sequence[int]) -> int | None:
    return next((number for number, count in Counter(numbers).items() if count > 1), None)
