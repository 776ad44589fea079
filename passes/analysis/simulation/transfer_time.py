"""
How long the unit tasks of a transfer take, one after the other at every port that they pass.

A port carries one task at a time, in the order of the tasks; the two directions of a full-duplex wire are two ports. A
slice that is handed on travels in chunks: the next hop begins with the first of them, when its ports are free (the
pipelined broadcast of cross-mesh 3.1, t + A t / K). A port that is faster than the slowest of a hop is free again once
its own part is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from ....ir.unit_tasks import Task, chunk_count
from .places import Routes


def task_seconds(tasks: Iterable[Task], element_bytes: int, routes: Routes) -> float:
    """
    When the last slice is there, where nothing else is sent.

    Args:
        tasks: in the order in which ranks begin them.
    """
    free: defaultdict[str, float] = defaultdict(float)
    return max((_arrival(task, task.elements * element_bytes, routes, free) for task in tasks), default=0.0)


def _arrival(task: Task, size: int, routes: Routes, free: defaultdict[str, float]) -> float:
    """When a slice is at the last of its receivers; `free` says from when on each port has nothing else to carry."""
    chunk = size / chunk_count(task, size)
    first = last = 0.0
    for sender, receiver in pairwise((task.sender, *task.receivers)):
        route = routes.between(sender, receiver)
        begin = max([first, *(free[port] for port in route.ports)])
        for port, bandwidth in zip(route.ports, route.capacities, strict=True):
            free[port] = begin + size / bandwidth
        first = begin + chunk / route.bandwidth + route.latency
        last = max(begin + size / route.bandwidth, last + chunk / route.bandwidth) + route.latency
    return last
