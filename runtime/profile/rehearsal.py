"""
Rehearsals of plans: every rank runs a plan's program without communication, and reads a clock between its ops.

On a processor the time of an op in a program differs from its time in a loop: its operands are in other caches or in
none, and it changes the caches and memory for the next op. So the ops of a plan are timed in their program, each
including the deletions after it. Wherever the program would wait for communication, the ranks only wait for one
another, so that as many of them compute at once as in a real step; received values are made up.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist

from ..communicator import Communicator
from ..executor import Executor
from ..groups import RankGroup
from ..pieces import piece_shape
from ..plan import Value
from ..requests import Pending, Request
from ..stages import Stage, connect
from .clock import Clock
from .samples import REFUSALS

_TURN_SECONDS = 0.2
_LEAST_STEPS, _MOST_STEPS = 2, 50
"""Bounds on the steps of a turn, after one step with cold caches that is not timed."""

_RATE = 1e-4
"""A learning rate so small that the weights hardly change."""

Tick: TypeAlias = "tuple[int | None, float]"
"""The number of the next op, None if it is not an op of the step, and the time."""

_DEVIATION, _LEAST = 0.1, 0.5
"""The deviation of made-up parameters, and the least value of buffers, which may be arguments of square roots."""


@dataclass(frozen=True)
class Rehearsal:
    """
    A plan to rehearse.

    Args:
        text: source text of its program, which announces each op by `comm.tick(number)`.
        keys: by rank of the job, and by number, the name of the op in the journal; empty if its time is not kept.
        ranges: by batch item of integers, their lower bound and exclusive upper bound.
    """

    name: str
    text: str
    keys: tuple[tuple[str, ...], ...]
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])


class Rehearsed(Communicator):
    """
    A communicator that sends nothing except between stages; the wait for a collective becomes a barrier of its group.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.meets = True
        """Whether ranks wait for one another."""
        self.ticks: list[Tick] = []
        """The ticks so far."""

    def tick(self, number: int | None = None) -> None:
        """Note that the op with the given number comes next, or with None the end of the step."""
        self.ticks.append((number, time.perf_counter()))

    def _begun(self, group: RankGroup, request: Request, now: bool) -> Pending:
        results = list(request.tensors) if group.size == 1 else _made_up(group, request)

        def finish() -> list[torch.Tensor]:
            if self.meets and group.size > 1:
                dist.barrier(group.handle)
            return results

        return Pending([], finish)


def _made_up(group: RankGroup, request: Request) -> list[torch.Tensor]:
    """Return a plausible result of a collective, with this rank's part in place of other ranks' parts."""
    tensors = request.tensors
    match request.kind:
        case "all_reduce" | "broadcast":
            return [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]
        case "all_gather":
            pairs = zip(tensors, request.dims(), request.gathered_sizes(group), strict=True)
            return [_repeated(tensor, dim, sum(sizes)) for tensor, dim, sizes in pairs]
        case "reduce_scatter":
            return _own_parts(group, request)
        case _:
            pairs = zip(_own_parts(group, request), request.concat_dims(), request.gathered_sizes(group), strict=True)
            return [_repeated(tensor, dim, sum(sizes)) for tensor, dim, sizes in pairs]


def _own_parts(group: RankGroup, request: Request) -> list[torch.Tensor]:
    triples = zip(request.tensors, request.dims(), request.scattered_sizes(group), strict=True)
    return [tensor.narrow(dim, 0, sizes[group.part]).contiguous() for tensor, dim, sizes in triples]


def _repeated(part: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Repeat a part along `dim` up to `size`."""
    if (length := part.shape[dim]) == 0:
        return part.new_zeros(piece_shape(part.shape, dim, size))
    return torch.cat([part] * math.ceil(size / length), dim).narrow(dim, 0, size).contiguous()


class RehearsalError(RuntimeError):
    """A program that does not run on made-up numbers; the message gives the reason."""


class Rehearsing:
    """
    A rehearsal on one rank; every rank must construct one, and call its methods in the same order.

    Raises:
        RehearsalError: on some rank the program does not run on made-up values.
    """

    def __init__(self, rehearsal: Rehearsal, clock: Clock) -> None:
        self._clock = clock
        names: dict[str, Any] = {"__name__": rehearsal.name}
        exec(compile(rehearsal.text, rehearsal.name, "exec"), names)
        stages = tuple(names["STAGES"]) if "STAGES" in names else (Stage(names["PLAN"], names["step"]),)
        self._comm = cast("Rehearsed", connect(stages, clock.device, communicator=Rehearsed))
        self._executor = Executor(stages, self._comm)
        self._keys = rehearsal.keys[clock.rank]
        generator = torch.Generator().manual_seed(0)
        self._executor.fill(lambda value, shape: _numbers(value, shape, (0, 2), generator))
        items = {value.name: value for plan in self._executor.plans for value in plan.inputs if value.role == "batch"}
        self._batch = {
            name: _numbers(value, value.shape, rehearsal.ranges.get(name, (0, 2)), generator)
            for name, value in items.items()
        }
        # Without barriers, a failing rank cannot block the others.
        self._comm.meets, refusal = False, ""
        try:
            self._step()
        except REFUSALS as error:
            refusal = str(error).splitlines()[0]
        self._comm.meets = True
        if details := next(filter(None, self._clock.everyone(refusal)), ""):
            raise RehearsalError(details)
        clock.wait_for_all()
        seconds = clock.slowest(clock.calls(self._step, 1))
        self._steps = min(max(math.ceil(_TURN_SECONDS / seconds), _LEAST_STEPS), _MOST_STEPS)

    def _step(self) -> None:
        self._executor.step(self._batch, _RATE)

    def turn(self) -> dict[str, list[float]]:
        """Run some steps; return, by name of op, its mean seconds on each rank."""
        self._step()
        self._comm.ticks.clear()
        for _ in range(self._steps):
            self._clock.wait_for_all()
            self._step()
            self._comm.tick()
        means = self._clock.everyone(mean_by_key(self._keys, self._comm.ticks))
        self._comm.ticks.clear()
        return by_rank(means)


def _numbers(value: Value, shape: tuple[int, ...], limits: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    dtype = value.torch_dtype
    if not dtype.is_floating_point:
        low, high = limits
        return torch.randint(max(low, 0), max(high, 1), shape, generator=generator).to(dtype)
    drawn = _DEVIATION * torch.randn(shape, generator=generator)
    if value.role == "buffer":
        # Buffers may be variances.
        drawn = drawn.abs() + _LEAST
    return drawn.to(dtype)


def mean_by_key(keys: Sequence[str], ticks: Sequence[Tick]) -> dict[str, float]:
    """Return, by name of op, the mean seconds from each of its ticks to the next tick."""
    spent: dict[str, list[float]] = {}
    for (number, begun), (_, ended) in pairwise(ticks):
        if number is not None and (key := keys[number]):
            spent.setdefault(key, []).append(ended - begun)
    return {key: statistics.fmean(seconds) for key, seconds in spent.items()}


def by_rank(found: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return, by name of op, the seconds of each rank; a rank without the op gets the mean of the other ranks."""
    seconds: dict[str, list[float]] = {}
    for key in dict.fromkeys(key for of_rank in found for key in of_rank):
        mean = statistics.fmean(of_rank[key] for of_rank in found if key in of_rank)
        seconds[key] = [of_rank.get(key, mean) for of_rank in found]
    return seconds
