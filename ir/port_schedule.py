"""
Searches for short schedules of jobs on ports (`ir/port_jobs.py`): senders and order (cross-mesh 3.2).

    naive       the first choice of each job, in the order given
        greedy      long jobs first, each on the ports with the least load so far (equation 4)
        dispatch    choices as in greedy; free ports start the job whose ports have most left to carry
        randomized  choices as in greedy; jobs without common ports run together, as many as random orders find
        dfs         depth-first search with pruning over all choices and orders, for a number of steps
        exact       the shortest schedule, by CP-SAT (`ir/exact_schedule.py`)
        best        the shortest of greedy, dispatch, randomized and dfs; if it is more than 0.5 % above the bound and
                    there are few jobs, exact for a number of steps

Budgets are steps, not seconds: a problem has the same schedule on every machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from random import Random
from typing import Literal, TypeAlias

from .exact_schedule import solve
from .port_jobs import Choice, Job, Problem, Schedule, least_makespan, makespan

Order: TypeAlias = Literal["best", "exact", "naive", "greedy", "dispatch", "randomized", "dfs"]

_TRIES = 20
"""Random orders that `randomized` tries for each set of jobs, if there are few jobs."""

_TRIED_JOBS = 2_000_000
"""For n jobs, `randomized` tries at most this / n^2 orders for each set."""

_DFS_STEPS = 30_000
"""Number of job starts that `dfs` tries."""

_SEARCHED_JOBS, _EXACT_JOBS = 1000, 100
"""Numbers of jobs above which `best` leaves out `randomized` and `dfs`, and CP-SAT."""

_NEAR = 1.005
"""`best` accepts a schedule within this factor of the bound."""

_BRIEF, _LONG = 0.05, 2.0
"""CP-SAT's limits in `best` and `exact`, in its deterministic measure of time (0.1 is half a second to a second)."""


@lru_cache(maxsize=512)
def schedule(problem: Problem, order: Order = "best") -> Schedule:
    """Return all jobs of a problem, each once, in the order of their start."""
    # Equal parts of a batch, and equal transfers of several layers, are the same problem.
    return _ORDERS[order](problem, Random(0)) if problem else ()


def _naive(problem: Problem, random: Random) -> Schedule:
    return tuple((number, 0) for number in range(len(problem)))


def _greedy(problem: Problem, random: Random) -> Schedule:
    load: defaultdict[int, int] = defaultdict(int)
    choices: list[Choice] = []
    for number in sorted(range(len(problem)), key=lambda number: -problem[number].length):
        job = problem[number]
        fixed = job.fixed if len(job.options) > 1 else frozenset[int]()
        heaviest = [max((load[port] for port in ports if port not in fixed), default=0) for ports in job.options]
        option = min(range(len(heaviest)), key=lambda option: heaviest[option])
        for port in job.options[option]:
            load[port] += job.length
        choices.append((number, option))
    return tuple(choices)


def _dispatch(problem: Problem, random: Random) -> Schedule:
    left: defaultdict[int, int] = defaultdict(int)
    waiting: defaultdict[tuple[int, ...], list[Choice]] = defaultdict(list)
    for number, option in reversed(_greedy(problem, random)):
        ports = problem[number].options[option]
        waiting[ports].append((number, option))
        for port in ports:
            left[port] += problem[number].length
    free: defaultdict[int, int] = defaultdict(int)
    now, started = 0, list[Choice]()
    while waiting:
        for ports in sorted(waiting, key=lambda ports: sorted(-left[port] for port in ports)):
            if all(free[port] <= now for port in ports):
                choice = waiting[ports].pop()
                started.append(choice)
                for port in ports:
                    free[port] = now + problem[choice[0]].length
                    left[port] -= problem[choice[0]].length
        waiting = defaultdict(list, {ports: choices for ports, choices in waiting.items() if choices})
        now = min((time for time in free.values() if time > now), default=now)
    return tuple(started)


def _randomized(problem: Problem, random: Random) -> Schedule:
    left: list[Choice] = list(_greedy(problem, random))
    tries = max(1, min(_TRIES, _TRIED_JOBS // len(problem) ** 2))
    started: list[Choice] = []
    while left:
        sets = [_disjoint(problem, random.sample(left, len(left))) for _ in range(tries)]
        best = max(
            sets, key=lambda candidates: sum(len(problem[number].options[option]) for number, option in candidates)
        )
        started += best
        taken = set(best)
        left = [choice for choice in left if choice not in taken]
    return tuple(started)


def _disjoint(problem: Problem, choices: Iterable[Choice]) -> list[Choice]:
    """Return the choices that share no port with an earlier choice."""
    busy = set[int]()
    disjoint: list[Choice] = []
    for number, option in choices:
        ports = problem[number].options[option]
        if busy.isdisjoint(ports):
            busy.update(ports)
            disjoint.append((number, option))
    return disjoint


def _dfs(problem: Problem, random: Random) -> Schedule:
    """Shorten the best schedule that the other orders find."""
    begin = _shortest(problem, (f(problem, random) for f in (_greedy, _dispatch, _randomized)))
    return _DepthFirstSearch(problem, begin).found


class _DepthFirstSearch:
    """
    Depth-first search with pruning: a schedule is a sequence of jobs whose starts never decrease.

    Only the first of several identical jobs is tried. A branch is cut if a port cannot carry the load that is left for
    it alone in less time than the best schedule so far.
    """

    def __init__(self, problem: Problem, begin: Schedule) -> None:
        self.problem, self.found = problem, begin
        self.most, self.least = makespan(problem, begin), least_makespan(problem)
        by_job: defaultdict[Job, list[int]] = defaultdict(list)
        for number, job in enumerate(problem):
            by_job[job].append(number)
        self.kinds = list(by_job.items())
        self.steps = _DFS_STEPS
        count = 1 + max((port for job in problem for ports in job.options for port in ports), default=-1)
        self.free, self.left = [0] * count, [0] * count
        for job in problem:
            for port in job.fixed:
                self.left[port] += job.length
        self._run()

    def _run(self) -> None:
        """Descend, and backtrack if nothing is left to try; a level has its branches and the data to undo the last."""
        at, done = [0] * len(self.kinds), list[Choice]()
        levels = [iter(self._branches(at, 0))]
        undo: list[tuple[int, list[tuple[int, int]]]] = []
        while levels and self.steps > 0 and self.most > self.least:
            if (branch := next(levels[-1], None)) is None:
                levels.pop()
                if undo:
                    self._undo(at, done, *undo.pop())
                continue
            start, kind, option = branch
            job, numbers = self.kinds[kind]
            undo.append((kind, [(port, self.free[port]) for port in job.options[option]]))
            for port in job.options[option]:
                self.free[port] = start + job.length
            for port in job.fixed:
                self.left[port] -= job.length
            done.append((numbers[at[kind]], option))
            at[kind] += 1
            if max(free + left for free, left in zip(self.free, self.left, strict=True)) >= self.most:
                self._undo(at, done, *undo.pop())
            elif len(done) == len(self.problem):
                self.most, self.found = max(self.free), tuple(done)
                self._undo(at, done, *undo.pop())
            else:
                levels.append(iter(self._branches(at, start)))

    def _undo(self, at: list[int], done: list[Choice], kind: int, freed: list[tuple[int, int]]) -> None:
        at[kind] -= 1
        done.pop()
        job, _ = self.kinds[kind]
        for port, time in freed:
            self.free[port] = time
        for port in job.fixed:
            self.left[port] += job.length

    def _branches(self, at: Sequence[int], now: int) -> list[tuple[int, int, int]]:
        """
        Return the possible next starts, not before `now`, with the kind of job and the option; the best come first.

        Starts that were possible earlier are omitted, and starts after another candidate could end: the schedule that
        moves this candidate to the front is no longer, and is tried as well.
        """
        starts: list[tuple[int, int, int, int]] = []
        for kind, (job, numbers) in enumerate(self.kinds):
            if at[kind] == len(numbers):
                continue
            for option, ports in enumerate(job.options):
                start = max(self.free[port] for port in ports)
                if start >= now and start + job.length < self.most:
                    urgency = max([job.length, *(self.left[port] for port in ports)])
                    starts.append((start, -urgency, kind, option))
        self.steps -= max(len(starts), 1)
        latest = min((start + self.kinds[kind][0].length for start, _, kind, _ in starts), default=0)
        return [(start, kind, option) for start, _, kind, option in sorted(starts) if start < latest]


def _exact(problem: Problem, random: Random) -> Schedule:
    return solve(problem, _dfs(problem, random), _LONG).found


def _best(problem: Problem, random: Random) -> Schedule:
    least, shortest = least_makespan(problem), _greedy(problem, random)
    enough = least * _NEAR
    if makespan(problem, shortest) > least:
        shortest = _shortest(problem, (shortest, _dispatch(problem, random)))
    if makespan(problem, shortest) > enough and len(problem) <= _SEARCHED_JOBS:
        shortest = _shortest(problem, (shortest, _randomized(problem, random)))
    if makespan(problem, shortest) > enough and len(problem) <= _SEARCHED_JOBS:
        shortest = _DepthFirstSearch(problem, shortest).found
    if makespan(problem, shortest) > enough and len(problem) <= _EXACT_JOBS:
        shortest = solve(problem, shortest, _BRIEF).found
    return shortest


def _shortest(problem: Problem, found: Iterable[Schedule]) -> Schedule:
    return min(found, key=lambda candidate: makespan(problem, candidate))


_ORDERS: dict[Order, Callable[[Problem, Random], Schedule]] = {
    "best": _best,
    "exact": _exact,
    "naive": _naive,
    "greedy": _greedy,
    "dispatch": _dispatch,
    "randomized": _randomized,
    "dfs": _dfs,
}
