"""
Measure a program on ranks: its steps, or its statements.

A `Site` has the ranks: processes of this machine, or of emulated hosts with limited links, which run this file.
"""

from __future__ import annotations

import ast
import itertools
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import _netns
import torch
import torch.distributed as dist
from _prediction_steps import STEPS
from _sides import busy_seconds, executor_of

from shardwright.api.training_step import TrainingStep
from shardwright.lowering.capture.calling import batch_items
from shardwright.runtime import run_ranks
from shardwright.runtime.executor import Executor

_WARM = 1
"""Untimed steps at the begin of a turn; the first step has cold caches."""

_TURN_SECONDS = 0.2
"""Shortest duration of a turn, long enough for the system's counters to show which processes worked."""

_LEAST_QUIET = 4
"""Number of turns that a figure needs: if fewer turns are quiet, the quietest ones are used."""

_CLOCK = "_line"


@dataclass(frozen=True)
class Turn:
    """
    Some consecutive steps.

    Args:
        steps: seconds of each step, until the last rank is done.
        wall: seconds of the turn.
        others: processor seconds that processes other than the ranks used during the turn.
    """

    steps: tuple[float, ...]
    wall: float
    others: float

    @property
    def is_quiet(self) -> bool:
        """Return whether other processes used at most a twentieth of a core, plus the resolution of the counter."""
        return self.others <= 0.05 * self.wall + 0.02


def quiet_steps(turns: Sequence[Turn]) -> list[float]:
    """Return the seconds of the steps of quiet turns, or of the quietest turns if too few are quiet."""
    quiet = [turn for turn in turns if turn.is_quiet]
    if len(quiet) < _LEAST_QUIET:
        quiet = sorted(turns, key=lambda turn: turn.others / turn.wall)[:_LEAST_QUIET]
    return [seconds for turn in quiet for seconds in turn.steps]


def time_steps(make: Callable[[], TrainingStep], text: str, seconds: float) -> list[Turn]:
    """Run a program in turns for about `seconds`, at least for one turn."""
    torch.set_num_threads(1)
    step = make()
    batch = batch_items(step.batch)
    side = executor_of(step, text, "timed")
    count = _steps_of_turn(side, batch)
    turns: list[Turn] = []
    start = time.perf_counter()
    while not turns or _over_ranks(time.perf_counter() - start, dist.ReduceOp.MAX)[0] < seconds:
        turns.append(_turn(side, batch, count))
    return turns


def _steps_of_turn(side: Executor, batch: dict[str, Any]) -> int:
    """Return the number of steps of a turn, equal on all ranks."""
    side.step(batch)
    (seconds,) = _over_ranks(_timed(side, batch), dist.ReduceOp.MAX)
    return max(2, math.ceil(_TURN_SECONDS / seconds))


def _turn(side: Executor, batch: dict[str, Any], count: int) -> Turn:
    for _ in range(_WARM):
        side.step(batch)
    dist.barrier()
    begun, busy, own_before = time.perf_counter(), busy_seconds(), time.process_time()
    steps = [_timed(side, batch) for _ in range(count)]
    (ours,) = _over_ranks(time.process_time() - own_before, dist.ReduceOp.SUM)
    wall, others = time.perf_counter() - begun, busy_seconds() - busy - ours
    wall, others = _over_ranks((wall, others), dist.ReduceOp.MAX)
    return Turn(tuple(_over_ranks(steps, dist.ReduceOp.MAX)), wall, others)


def _timed(side: Executor, batch: dict[str, Any]) -> float:
    dist.barrier()
    begun = time.perf_counter()
    side.step(batch)
    return time.perf_counter() - begun


def time_lines(make: Callable[[], TrainingStep], text: str, seconds: float) -> list[float]:
    """
    Return the median seconds of every statement of a program's step on this rank, over the means of quiet turns.

    A collective waits until the last rank reaches it, which counts.
    """
    torch.set_num_threads(1)
    step = make()
    side = executor_of(step, with_clock(text), "clocked")
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
        starts = range(_WARM * ticks, len(clock), ticks)
        gaps = [[b - a for a, b in itertools.pairwise(clock[at : at + ticks])] for at in starts]
        lines.append([statistics.fmean(column) for column in zip(*gaps, strict=True)])
    quiet = [row for row, turn in zip(lines, turns, strict=True) if turn.is_quiet] or lines
    return [statistics.median(column) for column in zip(*quiet, strict=True)]


def with_clock(text: str) -> str:
    """Return the program with a call of the clock before each statement of its step, and before the return."""
    tree = ast.parse(text)
    function = _step(tree)
    tick = ast.parse(f"{_CLOCK}()").body[0]
    *body, last = function.body
    function.body = [node for statement in body for node in (tick, statement)] + [tick, last]
    return ast.unparse(ast.fix_missing_locations(tree))


def statements(text: str) -> list[str]:
    """Return the statements of a program's step without its return, each on one line."""
    return [ast.unparse(statement) for statement in _step(ast.parse(text)).body[:-1]]


def _step(tree: ast.Module) -> ast.FunctionDef:
    return next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "step")


def _over_ranks(seconds: float | Sequence[float], how: dist.ReduceOp.RedOpType) -> list[float]:
    """Reduce numbers over all ranks."""
    reduced = torch.tensor(seconds, dtype=torch.float64).reshape(-1)
    dist.all_reduce(reduced, how)
    return reduced.tolist()


_PROFILE = ("-m", "shardwright.tools.cli", "profile")
_BURST = "16kb"
"""Burst of a link. It is small, since pauses refill it, and programs pause more than profiling does."""


class Site(Protocol):
    """A place where ranks run."""

    def profile(self, ranks: int, words: Sequence[str]) -> None:
        """Run `shardwright profile WORDS` on `ranks` ranks."""
        ...

    def measure(self, step: str, ranks: int, program: str, seconds: float) -> list[Turn]:
        """Time a program of a step on `ranks` ranks for about `seconds`."""
        ...


class Local:
    """Processes on this machine."""

    def profile(self, ranks: int, words: Sequence[str]) -> None:
        """Run the command, which starts its ranks itself."""
        subprocess.run([sys.executable, *_PROFILE, "--nproc-per-node", str(ranks), *words], check=True)

    def measure(self, step: str, ranks: int, program: str, seconds: float) -> list[Turn]:
        """Time the program over the loopback interface."""
        return run_ranks(time_steps, ranks, STEPS[step], program, seconds, timeout=60 + 4 * seconds)[0]


@dataclass(frozen=True)
class Emulated:
    """Emulated hosts with limited sending rates, each a network namespace that exists during one call."""

    rates: tuple[str, ...]
    ranks_each: int

    def profile(self, ranks: int, words: Sequence[str]) -> None:
        """Run the command on every rank, as under torchrun."""
        assert ranks == len(self.rates) * self.ranks_each
        with _netns.hosts(self.rates, _BURST) as names:
            _netns.launch([name for name in names for _ in range(self.ranks_each)], [*_PROFILE, *words])

    def measure(self, step: str, ranks: int, program: str, seconds: float) -> list[Turn]:
        """Time the program over the limited links."""
        request = {"step": step, "program": program, "seconds": seconds}
        turns = _netns.answers(__file__, self.rates, request, self.ranks_each, burst=_BURST)
        return [Turn(**turn) for turn in turns]


def _answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Time a program as one rank of an emulated host."""
    return [asdict(turn) for turn in time_steps(STEPS[request["step"]], request["program"], request["seconds"])]


def _no_rank() -> None:
    raise SystemExit("prediction.py starts this file on the ranks of emulated hosts")


if __name__ == "__main__":
    _netns.start(_answer, _no_rank)
