"""
The shortest schedule of jobs on ports, by constraint programming (CP-SAT).

    minimise  T
    subject to
        T >= s_j + length_j                              every job j starts at s_j
        exactly one x_jo                                 of its options
        [s_j, s_j + length_j) if x_jo, disjoint          on every port, for all (j, o) that occupy it
        T >= the load of ports                           `least_makespan`
            s_j <= s_k                                       for identical jobs j before k

With one worker and a limit in steps the solver gives the same schedule on every machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .port_jobs import Job, Problem, Schedule, least_makespan, makespan

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntervalVar, IntVar


@dataclass(frozen=True)
class Exact:
    """
    The result of the solver.

    Args:
        found: a schedule that is no longer than the initial one.
        least: lower bound on the length of every schedule.
    """

    found: Schedule
    least: int


def solve(problem: Problem, begin: Schedule, limit: float) -> Exact:
    """
    Shorten a schedule as far as possible.

    Args:
        begin: any valid schedule of the problem.
        limit: limit of the search in the solver's deterministic time; the best schedule so far is returned.
    """
    # OR-tools takes half a second to import; opt-tool starts without it.
    from ortools.sat.python import cp_model

    least, most = least_makespan(problem), makespan(problem, begin)
    if most <= least:
        return Exact(begin, least)
    model = cp_model.CpModel()
    starts = [model.new_int_var(0, most - job.length, "") for job in problem]
    chosen = [[model.new_bool_var("") for _ in job.options] for job in problem]
    latest = model.new_int_var(least, most, "")
    for start, job, options in zip(starts, problem, chosen, strict=True):
        model.add(latest >= start + job.length)
        model.add_exactly_one(options)
    for intervals in _by_port(model, problem, starts, chosen):
        model.add_no_overlap(intervals)
    last: dict[Job, IntVar] = {}
    for start, job in zip(starts, problem, strict=True):
        if job in last:
            model.add(last[job] <= start)
        last[job] = start
    _begin_with(model, problem, begin, starts, chosen)
    model.minimize(latest)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = limit
    # The defaults do not solve some problems of a hundred jobs; these settings suit problems of sequences on ports.
    solver.parameters.linearization_level = 0
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.symmetry_level = 0
    solver.parameters.use_precedences_in_disjunctive_constraint = True
    solver.parameters.use_strong_propagation_in_disjunctive = True
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Exact(begin, least)
    order = sorted(range(len(problem)), key=lambda number: (solver.value(starts[number]), number))
    solution = tuple((number, [solver.value(option) for option in chosen[number]].index(1)) for number in order)
    proven = max(least, round(solver.best_objective_bound))
    return Exact(min(begin, solution, key=lambda schedule: makespan(problem, schedule)), proven)


def _by_port(
    model: CpModel, problem: Problem, starts: list[IntVar], chosen: list[list[IntVar]]
) -> Iterator[list[IntervalVar]]:
    """Yield the intervals that occupy each port."""
    intervals: defaultdict[int, list[IntervalVar]] = defaultdict(list)
    for start, job, options in zip(starts, problem, chosen, strict=True):
        whole = model.new_fixed_size_interval_var(start, job.length, "")
        for port in sorted(job.fixed):
            intervals[port].append(whole)
        for ports, taken in zip(job.options, options, strict=True):
            if own := sorted(set(ports) - job.fixed):
                interval = model.new_optional_fixed_size_interval_var(start, job.length, taken, "")
                for port in own:
                    intervals[port].append(interval)
    yield from (intervals[port] for port in sorted(intervals))


def _begin_with(
    model: CpModel, problem: Problem, begin: Schedule, starts: list[IntVar], chosen: list[list[IntVar]]
) -> None:
    """Give the solver an initial schedule, with identical jobs in the order that its constraints require."""
    free: defaultdict[int, int] = defaultdict(int)
    slots: defaultdict[Job, list[tuple[int, int]]] = defaultdict(list)
    for number, option in begin:
        job = problem[number]
        start = max((free[port] for port in job.options[option]), default=0)
        free.update(dict.fromkeys(job.options[option], start + job.length))
        slots[job].append((start, option))
    in_order = {job: iter(sorted(pairs)) for job, pairs in slots.items()}
    for job, start, options in zip(problem, starts, chosen, strict=True):
        at, option = next(in_order[job])
        model.add_hint(start, at)
        for index, taken in enumerate(options):
            model.add_hint(taken, index == option)
