"""What each rank of a measurement does: steps of a program, or its lines, by the clock."""

from __future__ import annotations

import ast
import itertools
import math
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from _machine import busy_seconds

from shardwright.api.training_step import TrainingStep
from shardwright.lowering.capture.calling import batch_items
from shardwright.lowering.codegen.load_program import load_text
from shardwright.runtime.executor import Executor
from shardwright.runtime.stages import Stage, connect

_WARM = 1
"""Steps of a turn before those that are timed: the first finds cold caches."""

_TURN_SECONDS = 0.2
"""How long a turn is, at least: long enough for the counters of the system to see who worked."""

_LEAST_QUIET = 4
"""Of how many turns a figure is, at least, if there are so many: of the quietest, where fewer are quiet."""

_CLOCK = "_line"


@dataclass(frozen=True)
class Turn:
    """
    Some steps in a row.

    steps    the seconds of each, until the last rank is done
    wall     seconds of the turn
    others   the processor seconds that processes which are no rank took meanwhile
    """

    steps: tuple[float, ...]
    wall: float
    others: float

    @property
    def is_quiet(self) -> bool:
        """Whether the ranks had the machine to themselves: up to a twentieth of a core and the counter's grain."""
        return self.others <= 0.05 * self.wall + 0.02


def quiet_steps(turns: Sequence[Turn]) -> list[float]:
    """The seconds of the steps of quiet turns; where there are few, of the quietest."""
    quiet = [turn for turn in turns if turn.is_quiet]
    if len(quiet) < _LEAST_QUIET:
        quiet = sorted(turns, key=lambda turn: turn.others / turn.wall)[:_LEAST_QUIET]
    return [seconds for turn in quiet for seconds in turn.steps]


def executor(step: TrainingStep, text: str, name: str) -> Executor:
    """This rank's run of a program, with the weights of seed 0."""
    stages = [Stage(*each) for each in load_text(text, name)]
    made = Executor(stages, connect(stages, torch.device("cpu")))
    made.initialize(step.model, 0)
    return made


def time_steps(make: Callable[[], TrainingStep], text: str, seconds: float) -> list[Turn]:
    """Run a program in turns for about `seconds`, and at least one."""
    torch.set_num_threads(1)
    step = make()
    batch = batch_items(step.batch)
    side = executor(step, text, "timed")
    count = _steps_of_turn(side, batch)
    turns: list[Turn] = []
    start = time.perf_counter()
    while not turns or _over_ranks(time.perf_counter() - start, dist.ReduceOp.MAX)[0] < seconds:
        turns.append(_turn(side, batch, count))
    return turns


def _steps_of_turn(side: Executor, batch: dict[str, Any]) -> int:
    """How many steps make a turn, the same on all ranks."""
    side.step(batch)
    (seconds,) = _over_ranks(_timed(side, batch), dist.ReduceOp.MAX)
    return max(2, math.ceil(_TURN_SECONDS / seconds))


def _turn(side: Executor, batch: dict[str, Any], count: int) -> Turn:
    for _ in range(_WARM):
        side.step(batch)
    dist.barrier()
    begun, busy, mine = time.perf_counter(), busy_seconds(), _own_seconds()
    steps = [_timed(side, batch) for _ in range(count)]
    (ours,) = _over_ranks(_own_seconds() - mine, dist.ReduceOp.SUM)
    wall, others = time.perf_counter() - begun, busy_seconds() - busy - ours
    wall, others = _over_ranks((wall, others), dist.ReduceOp.MAX)
    return Turn(tuple(_over_ranks(steps, dist.ReduceOp.MAX)), wall, others)


def _timed(side: Executor, batch: dict[str, Any]) -> float:
    dist.barrier()
    begun = time.perf_counter()
    side.step(batch)
    return time.perf_counter() - begun


def _own_seconds() -> float:
    """What the threads of this process have worked so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def time_lines(make: Callable[[], TrainingStep], text: str, seconds: float) -> list[float]:
    """
    The mean seconds of every statement of a program's step on this rank, in the middle of the quiet turns.

    What a statement waits for is its own: of a collective, for the last rank to come to it.
    """
    torch.set_num_threads(1)
    step = make()
    side = executor(step, with_clock(text), "clocked")
    batch = batch_items(step.batch)
    clock: list[float] = []
    side.main.function.__globals__[_CLOCK] = lambda: clock.append(time.perf_counter())
    count = _steps_of_turn(side, batch)
    turns: list[Turn] = []
    lines: list[list[float]] = []
    start = time.perf_counter()
    while _over_ranks(time.perf_counter() - start, dist.ReduceOp.MAX)[0] < seconds:
        clock.clear()
        turns.append(_turn(side, batch, count))
        ticks = len(clock) // (count + _WARM)
        steps = [clock[at : at + ticks] for at in range(_WARM * ticks, len(clock), ticks)]
        lines.append([statistics.fmean(column) for column in zip(*map(_gaps, steps), strict=True)])
    quiet = [row for row, turn in zip(lines, turns, strict=True) if turn.is_quiet] or lines
    return [statistics.median(column) for column in zip(*quiet, strict=True)]


def _gaps(ticks: Sequence[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(ticks)]


def with_clock(text: str) -> str:
    """The program with a call of the clock before each statement of its step, and at its end."""
    tree = ast.parse(text)
    function = _step(tree)
    tick = ast.parse(f"{_CLOCK}()").body[0]
    *body, last = function.body
    function.body = [each for statement in body for each in (tick, statement)] + [tick, last]
    return ast.unparse(ast.fix_missing_locations(tree))


def statements(text: str) -> list[str]:
    """The statements of a program's step but its return, each on one line."""
    return [ast.unparse(statement) for statement in _step(ast.parse(text)).body[:-1]]


def _step(tree: ast.Module) -> ast.FunctionDef:
    return next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "step")


def _over_ranks(seconds: float | Sequence[float], how: dist.ReduceOp.RedOpType) -> list[float]:
    """What the ranks say, reduced."""
    reduced = torch.tensor(seconds, dtype=torch.float64).reshape(-1)
    dist.all_reduce(reduced, how)
    return reduced.tolist()
