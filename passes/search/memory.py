"""
Memory as prices: the cost of a byte at the program points where memory is short.

Peak memory is a maximum over program points and cannot be a sum over ops and edges. Lagrange multipliers make it one: a
byte alive at point t costs lambda_t seconds. Any prices give a lower bound on the cost of the cheapest plan that fits,
`min(cost + sum_t lambda_t * (bytes_t - limit))`; the higher the prices, the less memory the optimal plans need.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import Attribute, BlockArgument, Operation, OpResult, SSAValue, Use

from ...dialects import train
from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, element_bytes, shape_of
from ...dialects.ratios import ratios_of
from ...dialects.reuse import reusable_operands, reuses_all_or_none
from ...dialects.step import BACKWARD, sharding_of
from ...dialects.train import overwritten_by_update
from ...ir.cluster import Cluster
from ...ir.collectives import Step
from ...ir.sharding import Sharding
from ...ir.signatures import Signature
from ..analysis.collective_memory import collective_memory, is_permuted
from ..analysis.compute import spec_of
from ..analysis.liveness import Buffer, Bytes, Definition, Event, bytes_over_time, in_blocks, live_buffers
from ..analysis.memory import local_bytes_by_part
from ..analysis.memory_events import Run, Staging, made_by_collective, viewed_operand
from ..analysis.resharding import ReshardCosts, reshard_costs
from ..analysis.resharding_plan import ReshardingPlan
from ..step.factors import Factors
from ..step.step_view import StepView
from .objective import BatchLoop

Interval = tuple[int, int]
"""The positions of the first and the last op between which a value is alive."""


@dataclass(frozen=True)
class Prices:
    """Seconds per byte at program points (positions of ops)."""

    at: Mapping[int, float] = field(default_factory=dict[int, float])

    def over(self, intervals: Sequence[Interval]) -> float:
        """Return the price of a byte that is alive over `intervals`."""
        return sum(price for point, price in self.at.items() if any(start <= point <= end for start, end in intervals))

    @property
    def total(self) -> float:
        """Return the price of a byte that is always alive."""
        return sum(self.at.values())


@dataclass(frozen=True)
class Lifetimes:
    """
    The live ranges of the values of a step, in program order.

    Args:
        loop: parts into which the batch will be cut, if it will be.
    """

    view: StepView
    loop: BatchLoop | None = None

    @cached_property
    def position(self) -> dict[Operation, int]:
        """Return the position of each op."""
        return {op: i for i, op in enumerate(self.view.func.body.block.ops)}

    def users(self, value: SSAValue) -> list[Operation]:
        """Return the ops that read a value, directly or through views."""
        readers: list[Operation] = []
        for use in value.uses:
            op = use.operation
            readers.append(op)
            if isinstance(op, ComputeOp) and spec_of(op).view:
                readers += [user for result in op.outs for user in self.users(result)]
        return readers

    def whole(self, value: SSAValue) -> tuple[Interval, ...]:
        """Return the live range of a value, from definition to last use. A sum over parts is alive from the start."""
        is_sum = self.loop is not None and self.loop.is_sum(value)
        start = self.position[value.op] if isinstance(value, OpResult) and not is_sum else 0
        return ((start, max((self.position[op] for op in self.users(value)), default=start)),)

    def shared_uses(self, value: SSAValue) -> tuple[list[int], list[int]]:
        """Return the positions of the users of a value's working copy in forward and in backward."""
        users = [
            op
            for op in self.users(value)
            if isinstance(op, ComputeOp) and not (isinstance(value, BlockArgument) and train.is_update(op))
        ]
        backward = [self.position[op] for op in users if BACKWARD in op.attributes]
        return [self.position[op] for op in users if BACKWARD not in op.attributes], backward

    def copy(self, value: SSAValue, regather: bool) -> tuple[Interval, ...]:
        """
        Return the live range of a working copy, from first to last user; if regathered, one range in each phase.

        A copy that all parts of the batch use is kept until the last part, unless each part gathers it.
        """
        phases = self.shared_uses(value)
        if self.is_kept(value, regather=regather):
            return ((0, self._last_of_loop),)
        if not regather:
            together = [*phases[0], *phases[1]]
            return ((min(together), max(together)),) if together else ()
        return tuple((min(phase), max(phase)) for phase in phases if phase)

    def is_kept(self, value: SSAValue, *, regather: bool = False) -> bool:
        """
        Return whether every part of the batch uses the same copies of a value, which then last until the last part.

        Args:
            regather: whether the working copy is gathered again for backward.
        """
        return self._serves_all_parts(value) and (not self._is_per_part or (self.crosses(value) and not regather))

    def is_per_part(self, value: SSAValue) -> bool:
        """Return whether each part of the batch makes a copy of the same value, which only one phase uses."""
        return self._is_per_part and self._serves_all_parts(value) and not self.crosses(value)

    def gathers(self, value: SSAValue) -> int:
        """Return how often a working copy is made that is gathered again for backward."""
        is_in_loop = self._is_per_part and self._serves_all_parts(value)
        return 2 * self.loop.count if self.loop is not None and is_in_loop else 2

    @property
    def _is_per_part(self) -> bool:
        return self.loop is not None and self.loop.per_part

    def _serves_all_parts(self, value: SSAValue) -> bool:
        """Return whether every part of the batch uses the same value."""
        return self.loop is not None and self.loop.parts_of(value) == 1 and any(map(self.repeats, self.users(value)))

    def repeats(self, op: Operation) -> bool:
        """Return whether an op, or an op that reads it through views, runs once for each part of the batch."""
        if self.loop is None or not isinstance(op, ComputeOp):
            return False
        is_view = spec_of(op).view
        return self.loop.repeats(op) or (
            is_view and any(self.repeats(user) for it in op.outs for user in self.users(it))
        )

    @cached_property
    def _last_of_loop(self) -> int:
        return max((i for op, i in self.position.items() if self.loop is not None and self.loop.repeats(op)), default=0)

    def crosses(self, value: SSAValue) -> bool:
        """Whether a value is used both in forward and in backward."""
        forward, backward = self.shared_uses(value)
        return bool(forward and backward)


def owns_memory(op: ComputeOp) -> bool:
    """Whether the op's results own their memory; views and in-place updates do not."""
    return not spec_of(op).view and not isinstance(op, train.TrainOp)


@dataclass(frozen=True)
class Strategy:
    """
    The decisions of a search.

    Args:
        homes: homes of arguments and of values from other stages.
        copies: working copies, each with whether it is gathered again for backward.
        saves_memory: whether the function is in memory-saving mode (`spmd.memory_saving`).
    """

    ops: Mapping[ComputeOp, Signature]
    homes: Mapping[SSAValue, Sharding]
    copies: Mapping[SSAValue, tuple[Sharding, bool]]
    saves_memory: bool = False


class StrategyMemory:
    """
    The memory that a step would hold, as `check-memory` would measure it after `insert-resharding`.

    Collectives that start early or in buckets hold a little more than this, and gradients reduced early hold as much.

    Args:
        loop: parts into which the batch will be cut, if it will be.
    """

    def __init__(self, view: StepView, cluster: Cluster, loop: BatchLoop | None = None) -> None:
        self.view, self.costs, self.blocks, self.loop = view, reshard_costs(cluster), cluster.blocks, loop
        self.factors, self.lifetimes = Factors(view, ratios_of(view.func, view.mesh)), Lifetimes(view, loop)

    def over_time(self, strategy: Strategy) -> tuple[Sequence[Operation], NDArray[np.int64]]:
        """Return the ops that hold memory, and the bytes held during each op (rows) on each rank (columns)."""
        per_part = self.loop is not None and self.loop.per_part
        walk = _MemoryWalk(self.view, self.costs, self.factors, strategy, per_part=per_part)
        walk.run()
        run = walk.program()
        arguments = [step_input.argument for step_input in self.view.inputs]
        buffers: Sequence[Buffer] = live_buffers(run.events, arguments).listed
        ranks = self.view.mesh.device_count

        def size(value: Hashable) -> Bytes:
            return in_blocks(self._bytes(value, walk), self.blocks)

        if self.loop is not None:
            last = max((row for row, op in enumerate(run.ops) if self.loop.repeats(op)), default=0)
            buffers = list(self._over_parts(self.loop, buffers, walk, last))
        return run.ops, bytes_over_time(buffers, len(run.events), ranks, size)

    def _over_parts(self, loop: BatchLoop, buffers: Iterable[Buffer], walk: _MemoryWalk, last: int) -> Iterator[Buffer]:
        """
        Yield the buffers of a batch in parts, each with the events that hold its memory.

        Args:
            last: the last event of a part.
        """
        # Copies that no op uses are on the way to another resharding.
        used, kept = set(walk.given.values()), set[tuple[SSAValue, Sharding]]()
        for buffer in buffers:
            copy = buffer.value if isinstance(buffer.value, _Copied) else None
            value = cast("SSAValue[Attribute] | Staging", copy.value if copy is not None else buffer.value)
            if buffer.is_argument or isinstance(value, Staging):
                yield buffer
            elif loop.is_sum(value):
                # If each part reduces its gradient, the sum has the sharding of the reduced one.
                yield buffer if copy is None and value in walk.reduced_per_part else replace(buffer, first=0)
            elif copy is None or copy not in used or not self._is_kept(value, walk):
                yield buffer
            elif (key := (value, copy.sharding)) not in kept:
                # One copy that is kept for all parts serves all uses.
                kept.add(key)
                yield replace(buffer, first=0, last=max(last, buffer.last))

    def _is_kept(self, value: SSAValue, walk: _MemoryWalk) -> bool:
        """Return whether all parts of the batch use the same copies of a value."""
        _, regather = walk.working(value) or (None, False)
        return self.lifetimes.is_kept(value, regather=regather)

    def _bytes(self, value: Hashable, walk: _MemoryWalk) -> Bytes:
        if isinstance(value, Staging):
            return (self._bytes(value.value, walk) * value.share).astype(np.int64)
        whole = value.value if isinstance(value, _Copied) else cast("SSAValue[Attribute]", value)
        sharding = value.sharding if isinstance(value, _Copied) else walk.home(whole)
        held = local_bytes_by_part(shape_of(whole), element_bytes(whole), sharding, self.view.mesh).max(axis=1)
        if self.loop is None or (value is whole and isinstance(whole, BlockArgument)):
            return held
        return (held * self.loop.share_in_memory(whole)).astype(np.int64)


@dataclass(frozen=True)
class _Copied:
    """The `number`th copy that resharding would make of a value."""

    value: SSAValue[Attribute]
    sharding: Sharding
    number: int


class _MemoryWalk(ReshardingPlan[Hashable]):
    """Collects the copies of values that a strategy needs, and the memory events of making them; one use."""

    def __init__(
        self, view: StepView, costs: ReshardCosts, factors: Factors, strategy: Strategy, *, per_part: bool
    ) -> None:
        super().__init__(view, costs, factors, per_part=per_part)
        self.strategy, self.count = strategy, 0
        self.before: dict[Operation, list[Event]] = {}
        self.given: dict[tuple[Operation, int], Hashable] = {}

    def itself(self, value: SSAValue) -> Hashable:
        return value

    def home(self, value: SSAValue) -> Sharding:
        if isinstance(value, OpResult) and isinstance(value.op, ComputeOp):
            return self.strategy.ops[value.op].results[value.index]
        home = self.strategy.homes.get(value)
        return home if home is not None else sharding_of(value)

    def working(self, value: SSAValue) -> tuple[Sharding, bool] | None:
        copy = self.strategy.copies.get(value)
        return copy if copy is not None and copy[0] != self.home(value) else None

    def demand(self, op: ComputeOp, index: int) -> Sharding:
        return self.strategy.ops[op].operands[index]

    @property
    def saves_memory(self) -> bool:
        return self.strategy.saves_memory

    def make(
        self, value: SSAValue, start: Hashable, step: Step, before: Operation, user: Operation, again: bool
    ) -> Hashable:
        self.count += 1
        copy = _Copied(value, step.target, self.count)
        permuted = start is value and is_permuted(value)
        memory = collective_memory(step, shape_of(value), self.view.mesh, permuted)
        event = Event(((start, None),), tuple(made_by_collective(memory, step.kind, start, copy, None, None)))
        self.before.setdefault(before, []).append(event)
        return copy

    def give(self, use: Use, copy: Hashable) -> None:
        self.given[use.operation, use.index] = copy

    def program(self) -> Run:
        """Return the ops of the step, each after the collectives that would be inserted before it."""
        run = Run()
        for op in self.view.func.body.block.ops:
            for event in self.before.get(op, ()):
                run.add(op, event)
            if op is self.view.terminator or self.view.has(op) or any(map(self.view.has, (*op.operands, *op.results))):
                run.add(op, self._event(op))
        return run

    def _event(self, op: Operation) -> Event:
        operands = [self.given.get((op, index), value) for index, value in enumerate(op.operands)]
        mine = [value for value, whole in zip(operands, op.operands, strict=True) if self.view.has(whole)]
        makes: list[Definition] = []
        looks, reusable = viewed_operand(op), reusable_operands(op)
        for position, result in enumerate(op.results):
            if self.view.has(result):
                over = reusable.get(position)
                if over is not None and isinstance(op, AtenOp):
                    signature = self.strategy.ops[op]
                    over = over if signature.operands[over].dims == signature.results[position].dims else None
                view_of, written = (None if at is None else operands[at] for at in (looks, over))
                makes.append(Definition(result, view_of=view_of, over=written))
        reads = tuple((value, None) for value in mine)
        return Event(reads, tuple(makes), bool(overwritten_by_update(op)), reuses_all_or_none(op))
