"""What each rank of a measurement does: steps of several programs in turn, or the lines of one program by the clock."""

from __future__ import annotations

import ast
import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shardwright.api.training_step import TrainingStep
from shardwright.lowering.calling import batch_items
from shardwright.lowering.load_program import load_text
from shardwright.runtime.executor import Executor
from shardwright.runtime.stages import Stage, connect

_WARM, _TIMED = 1, 2
"""Steps of a program each time that it has its turn: the first of them finds cold caches."""

_CLOCK = "_line"


@dataclass(frozen=True)
class Measured:
    """The seconds of every timed step, by name of the program; of a step, until the last rank is done."""

    seconds: dict[str, list[float]]

    def middle(self, name: str) -> float:
        """The median of a program."""
        return statistics.median(self.seconds[name])


def executor(step: TrainingStep, text: str, name: str) -> Executor:
    """This rank's run of a program, with the weights of seed 0."""
    stages = [Stage(*each) for each in load_text(text, name)]
    made = Executor(stages, connect(stages, torch.device("cpu")))
    made.initialize(step.model, 0)
    return made


def time_steps(make: Callable[[], TrainingStep], programs: Sequence[tuple[str, str]], seconds: float) -> Measured:
    """Run the programs in turn, in random order, for about `seconds`."""
    torch.set_num_threads(1)
    step = make()
    batch = batch_items(step.batch)
    sides = [executor(step, text, name) for name, text in programs]
    for side in sides:
        side.step(batch)
    generator, order = random.Random(0), list(range(len(sides)))
    rows: list[list[float]] = [[] for _ in sides]
    start = time.perf_counter()
    while _longest(time.perf_counter() - start) < seconds:
        generator.shuffle(order)
        for index in order:
            for number in range(_WARM + _TIMED):
                dist.barrier()
                begun = time.perf_counter()
                sides[index].step(batch)
                if number >= _WARM:
                    rows[index].append(time.perf_counter() - begun)
    slowest = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return Measured({name: row for (name, _), row in zip(programs, slowest.tolist(), strict=True)})


def time_lines(make: Callable[[], TrainingStep], text: str, rounds: int) -> dict[str, float]:
    """
    The median seconds of every statement of a program's step on this rank, by the names that it assigns to.

    What a statement waits for is its own: of a collective, for the last rank to come to it.
    """
    torch.set_num_threads(1)
    step = make()
    side = executor(step, with_clock(text), "clocked")
    batch = batch_items(step.batch)
    clock: list[float] = []
    side._step_fn.__globals__[_CLOCK] = lambda: clock.append(time.perf_counter())
    rows: list[list[float]] = []
    for number in range(rounds + 2):
        clock.clear()
        dist.barrier()
        side.step(batch)
        if number >= 2:
            rows.append([b - a for a, b in itertools.pairwise(clock)])
    names = statement_names(text)
    middles = [statistics.median(column) for column in zip(*rows, strict=True)]
    return dict(zip(names, middles, strict=True))


def with_clock(text: str) -> str:
    """The program with a call of the clock before each statement of its step, and at its end."""
    tree = ast.parse(text)
    function = _step(tree)
    tick = ast.parse(f"{_CLOCK}()").body[0]
    *body, last = function.body
    function.body = [each for statement in body for each in (tick, statement)] + [tick, last]
    return ast.unparse(ast.fix_missing_locations(tree))


def statement_names(text: str) -> list[str]:
    """Of each statement of a program's step but its return, the text before the equals sign, or all of it."""
    lines = (ast.unparse(statement) for statement in _step(ast.parse(text)).body[:-1])
    return [f"{line.split(' = ', maxsplit=1)[0]} #{number}" for number, line in enumerate(lines)]


def _step(tree: ast.Module) -> ast.FunctionDef:
    return next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "step")


def _longest(seconds: float) -> float:
    """The largest of what the ranks say."""
    largest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.item()
