"""
Time the unit tasks of a transfer, which take turns at every port that they pass.

A port carries one task at a time, in the order of the tasks; the two directions of a full-duplex wire are two ports. A
slice that is passed on travels in chunks: the next hop begins with the first chunk, when its ports are free (the
pipelined broadcast of cross-mesh 3.1, t + A t / K). A port that is faster than the slowest port of a hop is free again
once its own part is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from ....ir.unit_tasks import Task, chunk_count
from .places import Routes


def task_seconds(tasks: Iterable[Task], element_bytes: int, routes: Routes) -> float:
    """
    Return the seconds until the last slice has arrived, if nothing else is sent.

    Args:
        tasks: the tasks, in the order that ranks begin them.
    """
    free: defaultdict[str, float] = defaultdict(float)
    return max((_arrival(task, task.elements * element_bytes, routes, free) for task in tasks), default=0.0)


def _arrival(task: Task, size: int, routes: Routes, free: defaultdict[str, float]) -> float:
    """Return when a slice has arrived at all receivers; update `free`, the time when each port becomes free."""
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
