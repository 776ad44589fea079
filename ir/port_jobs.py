"""
Jobs on ports: messages, their possible senders, and schedules of them (cross-mesh 3.2).

A job occupies several ports at once, for as long as it takes to send it; a port carries one job at a time. Where a job
has a choice of ports (its senders), the schedule makes it. A schedule is jobs in the order of their start: each starts
when all of its ports have done what comes before it, so that its place in the order is its place at every port.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Choice: TypeAlias = tuple[int, int]
"""The number of a job, and of one of its options."""
Schedule: TypeAlias = tuple[Choice, ...]


@dataclass(frozen=True)
class Job:
    """
    What is sent at once.

    Args:
        length: for how long it occupies its ports; a whole number of any unit, at least 1.
        options: the ports that it may occupy, one set of which it does; none of them empty.
    """

    length: int
    options: tuple[tuple[int, ...], ...]

    @property
    def fixed(self) -> frozenset[int]:
        """The ports that it occupies whatever is chosen."""
        return frozenset(self.options[0]).intersection(*self.options)


Problem: TypeAlias = tuple[Job, ...]


def makespan(problem: Problem, found: Iterable[Choice]) -> int:
    """When the last job of a schedule is done (equation 1)."""
    free: defaultdict[int, int] = defaultdict(int)
    for number, option in found:
        job = problem[number]
        ports = job.options[option]
        end = max((free[port] for port in ports), default=0) + job.length
        free.update(dict.fromkeys(ports, end))
    return max(free.values(), default=0)


def least_makespan(problem: Problem) -> int:
    """A lower bound of the makespan of every schedule, from what each port, and each set of ports, has to carry."""
    must = covering_load((job.length, frozenset((port,))) for job in problem for port in job.fixed)
    either = covering_load((job.length, ports) for job in problem if (ports := _alternatives(job)))
    step = math.gcd(*(job.length for job in problem)) or 1
    return -(-math.ceil(max(must, either)) // step) * step


def covering_load(demands: Iterable[tuple[int, frozenset[int]]]) -> float:
    """
    What the busiest port carries at least, where each load may be put on any of several ports, or shared among them.

    The largest, over sets of ports, of what can go nowhere else divided by the number of ports. Looked at are the sets
    that loads have, their unions from the smallest on, and all ports.
    """
    loads: defaultdict[frozenset[int], int] = defaultdict(int)
    for length, ports in demands:
        loads[ports] += length
    sets, grown = dict.fromkeys(loads), frozenset[int]()
    for ports in sorted(loads, key=lambda ports: (len(ports), sorted(ports))):
        grown |= ports
        sets[grown] = None
    return max((sum(load for p, load in loads.items() if p <= each) / len(each) for each in sets if each), default=0.0)


def _alternatives(job: Job) -> frozenset[int]:
    """The ports of which a job takes one or the other; empty where it has no choice, or may take none of them."""
    rest = [frozenset(option) - job.fixed for option in job.options]
    return frozenset[int]().union(*rest) if all(rest) else frozenset[int]()
