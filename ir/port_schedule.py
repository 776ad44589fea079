"""
Searches for short schedules of jobs on ports (`ir/port_jobs.py`): senders and order (cross-mesh 3.2).

    naive       the first choice of each job, in the order given
    greedy      long jobs first, each on the ports with least to carry so far (equation 4)
    dispatch    choices as greedy; whenever ports are free, the job for those that have most left to carry
    randomized  choices as greedy; jobs that share no port together, as many as random orders find
    dfs         depth-first search with pruning over all choices and orders, for a number of steps
    exact       the shortest, by CP-SAT (`ir/exact_schedule.py`)
    best        the shortest of greedy, dispatch, randomized and dfs; where it is more than 0.5 % above the bound and
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
"""Random orders that `randomized` looks at for each set of jobs, where there are few jobs."""

_TRIED_JOBS = 2_000_000
"""With n jobs `randomized` looks at no more than this / n^2 orders for each set."""

_DFS_STEPS = 30_000
"""How many starts of a job `dfs` looks at."""

_SEARCHED_JOBS, _EXACT_JOBS = 1000, 100
"""With more jobs `best` leaves out `randomized` and `dfs`, and does not ask CP-SAT."""

_NEAR = 1.005
"""`best` is content with a schedule that is no further above the bound."""

_BRIEF, _LONG = 0.05, 2.0
"""What `best` and `exact` give CP-SAT, in its deterministic measure of time (0.1 is half a second to a second)."""


@lru_cache(maxsize=512)
def schedule(problem: Problem, order: Order = "best") -> Schedule:
    """Return all jobs of a problem, each once, in the order of their start."""
    # Equal parts of a batch, and equal transfers of several layers, are one problem.
    return _ORDERS[order](problem, Random(0)) if problem else ()


def _naive(problem: Problem, random: Random) -> Schedule:
    return tuple((number, 0) for number in range(len(problem)))


def _greedy(problem: Problem, random: Random) -> Schedule:
    load: defaultdict[int, int] = defaultdict(int)
    found: list[Choice] = []
    for number in sorted(range(len(problem)), key=lambda number: -problem[number].length):
        job = problem[number]
        fixed = job.fixed if len(job.options) > 1 else frozenset[int]()
        heaviest = [max((load[port] for port in ports if port not in fixed), default=0) for ports in job.options]
        option = min(range(len(heaviest)), key=lambda option: heaviest[option])
        for port in job.options[option]:
            load[port] += job.length
        found.append((number, option))
    return tuple(found)


def _dispatch(problem: Problem, random: Random) -> Schedule:
    left: defaultdict[int, int] = defaultdict(int)
    waiting: defaultdict[tuple[int, ...], list[Choice]] = defaultdict(list)
    for number, option in reversed(_greedy(problem, random)):
        ports = problem[number].options[option]
        waiting[ports].append((number, option))
        for port in ports:
            left[port] += problem[number].length
    free: defaultdict[int, int] = defaultdict(int)
    now, found = 0, list[Choice]()
    while waiting:
        for ports in sorted(waiting, key=lambda ports: sorted(-left[port] for port in ports)):
            if all(free[port] <= now for port in ports):
                choice = waiting[ports].pop()
                found.append(choice)
                for port in ports:
                    free[port] = now + problem[choice[0]].length
                    left[port] -= problem[choice[0]].length
        waiting = defaultdict(list, {ports: choices for ports, choices in waiting.items() if choices})
        now = min((time for time in free.values() if time > now), default=now)
    return tuple(found)


def _randomized(problem: Problem, random: Random) -> Schedule:
    left: list[Choice] = list(_greedy(problem, random))
    tries = max(1, min(_TRIES, _TRIED_JOBS // len(problem) ** 2))
    found: list[Choice] = []
    while left:
        sets = [_disjoint(problem, random.sample(left, len(left))) for _ in range(tries)]
        best = max(sets, key=lambda each: sum(len(problem[number].options[option]) for number, option in each))
        found += best
        taken = set(best)
        left = [choice for choice in left if choice not in taken]
    return tuple(found)


def _disjoint(problem: Problem, choices: Iterable[Choice]) -> list[Choice]:
    """Those that share no port with one before them."""
    busy = set[int]()
    found: list[Choice] = []
    for number, option in choices:
        ports = problem[number].options[option]
        if busy.isdisjoint(ports):
            busy.update(ports)
            found.append((number, option))
    return found


def _dfs(problem: Problem, random: Random) -> Schedule:
    """Begin with the best that the others find, and look for shorter ones."""
    begin = _shortest(problem, (f(problem, random) for f in (_greedy, _dispatch, _randomized)))
    return _DepthFirstSearch(problem, begin).found


class _DepthFirstSearch:
    """
    Depth-first search with pruning: every schedule is a sequence of jobs whose starts do not fall.

    Of jobs that are alike the first is tried. A branch is cut where a port cannot carry what is left for it alone in
    less time than the best schedule so far takes.
    """

    def __init__(self, problem: Problem, begin: Schedule) -> None:
        self.problem, self.found = problem, begin
        self.most, self.least = makespan(problem, begin), least_makespan(problem)
        alike: defaultdict[Job, list[int]] = defaultdict(list)
        for number, job in enumerate(problem):
            alike[job].append(number)
        self.kinds = list(alike.items())
        self.steps = _DFS_STEPS
        count = 1 + max((port for job in problem for ports in job.options for port in ports), default=-1)
        self.free, self.left = [0] * count, [0] * count
        for job in problem:
            for port in job.fixed:
                self.left[port] += job.length
        self._run()

    def _run(self) -> None:
        """Go down, and back up where nothing is left to try; a level is its branches and how to undo the last one."""
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
        What may start next, not before `now`: the start, the kind of job and the option; the best first.

        Left out is what could have started before, and what would start when something else could be over: the
        schedule in which that is moved to the front is no longer, and looked at as well.
        """
        found: list[tuple[int, int, int, int]] = []
        for kind, (job, numbers) in enumerate(self.kinds):
            if at[kind] == len(numbers):
                continue
            for option, ports in enumerate(job.options):
                start = max(self.free[port] for port in ports)
                if start >= now and start + job.length < self.most:
                    urgency = max([job.length, *(self.left[port] for port in ports)])
                    found.append((start, -urgency, kind, option))
        self.steps -= max(len(found), 1)
        latest = min((start + self.kinds[kind][0].length for start, _, kind, _ in found), default=0)
        return [(start, kind, option) for start, _, kind, option in sorted(found) if start < latest]


def _exact(problem: Problem, random: Random) -> Schedule:
    return solve(problem, _dfs(problem, random), _LONG).found


def _best(problem: Problem, random: Random) -> Schedule:
    least, found = least_makespan(problem), _greedy(problem, random)
    enough = least * _NEAR
    if makespan(problem, found) > least:
        found = _shortest(problem, (found, _dispatch(problem, random)))
    if makespan(problem, found) > enough and len(problem) <= _SEARCHED_JOBS:
        found = _shortest(problem, (found, _randomized(problem, random)))
    if makespan(problem, found) > enough and len(problem) <= _SEARCHED_JOBS:
        found = _DepthFirstSearch(problem, found).found
    if makespan(problem, found) > enough and len(problem) <= _EXACT_JOBS:
        found = solve(problem, found, _BRIEF).found
    return found


def _shortest(problem: Problem, found: Iterable[Schedule]) -> Schedule:
    return min(found, key=lambda each: makespan(problem, each))


_ORDERS: dict[Order, Callable[[Problem, Random], Schedule]] = {
    "best": _best,
    "exact": _exact,
    "naive": _naive,
    "greedy": _greedy,
    "dispatch": _dispatch,
    "randomized": _randomized,
    "dfs": _dfs,
}
