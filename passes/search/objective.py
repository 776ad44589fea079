"""The objective of a search: the seconds that count, and their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.ir import BlockArgument, Operation, SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp
from ...ir.interned import Interned
from ...ir.sharding import Sharding
from ...ir.signatures import Split
from ..analysis.compute import ONCE, Turns, is_contraction, is_for_updates, is_view_or_cast
from ..analysis.step_prices import Pricing
from ..step.batch_parts import BatchParts


@dataclass(frozen=True, eq=False)
class Price(metaclass=Interned):
    """
    The weights of the seconds of a value's resharding.

    Args:
        weight: factor of the seconds.
        pricing: how collectives are priced.
        turns: number of parts of the batch, resharded one after the other.
        times: number of times that the whole value is resharded.
        beside: whether the communication may overlap with compute.
        reduces: whether a partial value may be reduced; if not, the reduction costs infinity, whatever the weight.
    """

    weight: float
    pricing: Pricing
    turns: int = 1
    times: int = 1
    beside: bool = False
    reduces: bool = True

    @property
    def counts(self) -> bool:
        """Whether any change of sharding costs anything."""
        return bool(self.weight) or not self.reduces


@dataclass(frozen=True)
class ShardingChange:
    """
    A change of a value's sharding.

    Args:
        why: the purpose: a working copy; a user, at its `operand`; the op that computes an argument's new value; the
            home of that new value; or the loss.
        to: the op that reads the value, or whose result goes home, or None if several share the change.
        users: number of uses of the working copy or, for `update` and `home`, of the value.
        forms: possible shardings of the working copy.
    """

    value: SSAValue
    why: Literal["copy", "user", "update", "home", "loss"]
    to: Operation | None = None
    operand: int = 0
    users: int = 1
    forms: tuple[Sharding, ...] = ()


@dataclass(frozen=True)
class Weights:
    """
    The factors of seconds in the objective.

    Args:
        contractions: factor of contractions.
        others: factor of all other ops.
        parameters: factor of collectives that gather parameters or reduce gradients; they may overlap with compute.
        activations: factor of all other collectives, which block the ops after them.
        bucketed: whether collectives of the first kind are priced in full buckets, which share their latency.
    """

    contractions: float = 1.0
    others: float = 1.0
    parameters: float = 1.0
    activations: float = 1.0
    bucketed: bool = False

    def of_op(self, op: ComputeOp) -> float:
        """Return the factor of the seconds of an op."""
        return self.contractions if is_contraction(op) else self.others

    def price(self, move: ShardingChange) -> Price:
        """Return the price of a change of a value's sharding."""
        if isinstance(move.value, BlockArgument) or _is_for_updates(move):
            # Communication of parameters may overlap with compute.
            return Price(self.parameters, Pricing(bucketed=self.bucketed), beside=True)
        return Price(self.activations, Pricing())


def _is_for_updates(move: ShardingChange) -> bool:
    """Whether only updates, or views and casts for updates, read a value in its new sharding."""
    if move.to is not None:
        is_handed_on = isinstance(move.to, ComputeOp) and is_view_or_cast(move.to)
        return train.is_update(move.to) or (is_handed_on and is_for_updates(move.to, is_view_or_cast))
    users = [use.operation for use in move.value.uses if isinstance(use.operation, ComputeOp)]
    return move.why == "copy" and all(map(train.is_update, users))


COMPLETION = Weights(contractions=1.0, others=0.0)
"""
The weights with which pins are completed: least communication, but contractions count; otherwise it would be cheapest
to replicate all computation.
"""


@dataclass(frozen=True)
class BatchLoop:
    """
    The batch cut into parts that are computed one after the other.

    Args:
        count: number of parts.
        found: choices of the ops and shardings of the values over the parts.
        in_flight: number of parts whose values are in memory together, at most.
        per_part: whether each part gathers parameters, unless forward and backward share the copy, and reduces their
            gradients.
    """

    count: int
    found: BatchParts
    in_flight: int
    per_part: bool = False

    def turns_of(self, op: ComputeOp) -> Turns:
        """Return how often an op will run, and the factor that is cut into parts."""
        choice = self.found.choices.get(op)
        return ONCE if choice is None else Turns(self.count, choice.factor if isinstance(choice, Split) else None)

    def parts_of(self, value: SSAValue) -> int:
        """Return the number of parts that a value is computed in."""
        return self.count if self.found.values[value].split_axes else 1

    def share_in_memory(self, value: SSAValue) -> float:
        """Return the share of a value, or of copies of it, that is in memory at a time; batch items are whole."""
        return self.in_flight / self.parts_of(value) if self.parts_of(value) > 1 else 1.0

    def repeats(self, op: Operation) -> bool:
        """Return whether an op runs once for each part."""
        return isinstance(op, ComputeOp) and self.turns_of(op) != ONCE

    def is_sum(self, value: SSAValue) -> bool:
        """Return whether a value is added up over the parts, so that it is in memory from the first part on."""
        return self._is_term(value) and not all(self.repeats(use.operation) for use in value.uses)

    def times_of(self, move: ShardingChange) -> int:
        """Return how often a whole value is resharded: in each part, if it is a term of a sum that the part reads."""
        is_repeated = self._is_term(move.value) and move.to is not None and self.repeats(move.to)
        return self.count if is_repeated else 1

    def _is_term(self, value: SSAValue) -> bool:
        """Return whether each part computes a term of a sum over the parts."""
        return bool(self.found.values[value].partial)
