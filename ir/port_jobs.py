"""
Jobs on ports: messages, their possible senders, and schedules of them (cross-mesh 3.2).

A job occupies several ports at once for its whole length; a port carries one job at a time. If a job has a choice of
ports (its senders), the schedule makes the choice. A schedule lists jobs in start order: each starts when all of its
ports have finished their earlier jobs, so its place in the order is its place at every port.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Choice: TypeAlias = tuple[int, int]
"""The number of a job, and the number of one of its options."""
Schedule: TypeAlias = tuple[Choice, ...]


@dataclass(frozen=True)
class Job:
    """
    A message that is sent at once.

    Args:
        length: time for which it occupies its ports; a whole number of any unit, at least 1.
        options: sets of ports that it may occupy, none of them empty; it occupies one of the sets.
    """

    length: int
    options: tuple[tuple[int, ...], ...]

    @property
    def fixed(self) -> frozenset[int]:
        """The ports that the job occupies in every option."""
        return frozenset(self.options[0]).intersection(*self.options)


Problem: TypeAlias = tuple[Job, ...]


def makespan(problem: Problem, found: Iterable[Choice]) -> int:
    """Return the end of the last job of a schedule (equation 1)."""
    free: defaultdict[int, int] = defaultdict(int)
    for number, option in found:
        job = problem[number]
        ports = job.options[option]
        end = max((free[port] for port in ports), default=0) + job.length
        free.update(dict.fromkeys(ports, end))
    return max(free.values(), default=0)


def least_makespan(problem: Problem) -> int:
    """Return a lower bound on the makespan of every schedule, from the loads of ports and of sets of ports."""
    must = covering_load((job.length, frozenset((port,))) for job in problem for port in job.fixed)
    either = covering_load((job.length, ports) for job in problem if (ports := _alternatives(job)))
    step = math.gcd(*(job.length for job in problem)) or 1
    return -(-math.ceil(max(must, either)) // step) * step


def covering_load(demands: Iterable[tuple[int, frozenset[int]]]) -> float:
    """
    Return a lower bound on the load of the busiest port, if each load may be put on any of several ports, or be shared.

    It is the maximum, over sets of ports, of the load that must stay in the set divided by the number of its ports. The
    sets tried are the sets of the loads, their unions from the smallest on, and all ports.
    """
    loads: defaultdict[frozenset[int], int] = defaultdict(int)
    for length, ports in demands:
        loads[ports] += length
    sets, grown = dict.fromkeys(loads), frozenset[int]()
    for ports in sorted(loads, key=lambda ports: (len(ports), sorted(ports))):
        grown |= ports
        sets[grown] = None
    return max(
        (sum(load for p, load in loads.items() if p <= group) / len(group) for group in sets if group), default=0.0
    )


def _alternatives(job: Job) -> frozenset[int]:
    """Return the ports among which a job has a choice; empty if it has none, or may take only its fixed ports."""
    rest = [frozenset(option) - job.fixed for option in job.options]
    return frozenset[int]().union(*rest) if all(rest) else frozenset[int]()
