"""
Memory as prices: what a byte costs at the program points where memory is short.

Peak memory is a maximum over program points, which no sum over ops and edges can say. Lagrange's multipliers
can: a byte alive at point t costs lambda_t seconds. Every choice of prices gives a lower bound of the
cheapest plan that fits, `min(cost + sum_t lambda_t * (bytes_t - limit))`, and plans that are tighter the
higher the prices are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp
from ...dialects.step import BACKWARD
from ...ir.sharding import Sharding
from ...ir.signatures import Signature
from ..analysis.compute import local_bytes, spec_of
from .step_view import StepView

Interval = tuple[int, int]
"""The positions of ops, first and last, between which a value is alive."""


@dataclass(frozen=True)
class Prices:
    """Seconds per byte at program points (positions of ops)."""

    at: Mapping[int, float] = field(default_factory=dict[int, float])

    def over(self, intervals: Sequence[Interval]) -> float:
        """The price of a byte that is alive over `intervals`."""
        return sum(
            price
            for point, price in self.at.items()
            if any(start <= point <= end for start, end in intervals)
        )

    @property
    def total(self) -> float:
        """The price of a byte that is always alive."""
        return sum(self.at.values())


@dataclass(frozen=True)
class Lifetimes:
    """When the values of a step are alive, in program order."""

    view: StepView

    @cached_property
    def position(self) -> dict[Operation, int]:
        """The position of each op."""
        return {op: i for i, op in enumerate(self.view.func.body.block.ops)}

    def users(self, value: SSAValue) -> list[Operation]:
        """The ops that read a value, through views of it too."""
        found: list[Operation] = []
        for use in value.uses:
            op = use.operation
            found.append(op)
            if isinstance(op, ComputeOp) and spec_of(op).view:
                found += [user for result in op.outs for user in self.users(result)]
        return found

    def whole(self, value: SSAValue) -> tuple[Interval, ...]:
        """From definition to last use."""
        start = self.position[value.op] if isinstance(value, OpResult) else 0
        return ((start, max((self.position[op] for op in self.users(value)), default=start)),)

    def shared_uses(self, value: SSAValue) -> tuple[list[int], list[int]]:
        """Positions of the users of a value's working copy: in forward, and in backward."""
        users = [
            op
            for op in self.users(value)
            if isinstance(op, ComputeOp)
            and not (isinstance(value, BlockArgument) and isinstance(op, train.TrainOp))
        ]
        backward = [self.position[op] for op in users if BACKWARD in op.attributes]
        return [self.position[op] for op in users if BACKWARD not in op.attributes], backward

    def copy(self, value: SSAValue, regather: bool) -> tuple[Interval, ...]:
        """
        When a working copy is alive: from its first user to its last; if regathered, once in each phase.
        """
        phases = self.shared_uses(value)
        if not regather:
            together = [*phases[0], *phases[1]]
            return ((min(together), max(together)),) if together else ()
        return tuple((min(phase), max(phase)) for phase in phases if phase)

    def crosses(self, value: SSAValue) -> bool:
        """Whether a value is used in forward and in backward."""
        forward, backward = self.shared_uses(value)
        return bool(forward and backward)


def owns_memory(op: ComputeOp) -> bool:
    """Whether the op's results take memory of their own: views and updates in place do not."""
    return not spec_of(op).view and not isinstance(op, train.TrainOp)


@dataclass(frozen=True)
class Holding:
    """A value that is kept in one sharding over some intervals."""

    value: SSAValue
    sharding: Sharding
    intervals: tuple[Interval, ...]


def holdings(
    lifetimes: Lifetimes,
    ops: Mapping[ComputeOp, Signature],
    homes: Mapping[SSAValue, Sharding],
    copies: Mapping[SSAValue, tuple[Sharding, bool]],
) -> list[Holding]:
    """Everything that a strategy keeps in memory, and when."""
    always = ((0, len(lifetimes.position) - 1),)
    found = [
        Holding(value, sharding, always if isinstance(value, BlockArgument) else lifetimes.whole(value))
        for value, sharding in homes.items()
    ]
    for op, signature in ops.items():
        for result, sharding in zip(op.outs, signature.results, strict=True):
            if owns_memory(op) and (result not in copies or copies[result][1]):
                found.append(Holding(result, sharding, lifetimes.whole(result)))
    for value, (sharding, regather) in copies.items():
        owned = isinstance(value, OpResult) and isinstance(value.op, ComputeOp) and owns_memory(value.op)
        if owned and not regather:
            found.append(Holding(value, sharding, lifetimes.whole(value)))
        elif sharding != _home(value, ops, homes):
            found.append(Holding(value, sharding, lifetimes.copy(value, regather)))
    return found


def _home(
    value: SSAValue, ops: Mapping[ComputeOp, Signature], homes: Mapping[SSAValue, Sharding]
) -> Sharding | None:
    if isinstance(value, OpResult) and isinstance(value.op, ComputeOp):
        return ops[value.op].results[value.index]
    return homes.get(value)


def bytes_over_time(view: StepView, lifetimes: Lifetimes, held: Sequence[Holding]) -> NDArray[np.float64]:
    """The bytes alive at each op on the device with the largest shares."""
    change = np.zeros(len(lifetimes.position) + 1)
    for each in held:
        size = local_bytes(each.value, each.sharding, view.mesh)
        for start, end in each.intervals:
            change[start] += size
            change[end + 1] -= size
    return np.cumsum(change)[:-1]
