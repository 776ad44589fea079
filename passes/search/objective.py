"""The objective of a search: which seconds count, and with which weights."""

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
    The weights of the seconds in which a value changes its sharding.

    Args:
        weight: by which they are multiplied.
        pricing: how collectives are priced.
        turns: in how many parts of the batch it does, one after the other.
        beside: whether that travels beside compute.
        reduces: whether a partial value may be reduced; if not, that costs infinity whatever the weight.
    """

    weight: float
    pricing: Pricing
    turns: int = 1
    beside: bool = False
    reduces: bool = True

    @property
    def counts(self) -> bool:
        """Whether any change of a sharding costs anything."""
        return bool(self.weight) or not self.reduces


@dataclass(frozen=True)
class ShardingChange:
    """
    A change of a value's sharding.

    Args:
        why: for its working copy; for a user, by `operand`; for the op that makes an argument's new value; for the home
            of that new value; for the loss.
        to: the op that it is made for, or whose result it takes home; None where it serves several.
        users: how many get the value through its working copy; 1 where it has none.
        forms: of which that copy may have one.
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
    What the objective counts: seconds are multiplied by these.

    contractions  of contractions
    others        of all other ops
    parameters    of collectives that bring parameters to where they are used, and take gradients from where they
                  are made: they run beside compute, so that part of their time may cost nothing
    activations   of all other collectives, which hold up what comes next
    bucketed      whether the first kind travel in full buckets, so that latency is not paid for each by itself
    """

    contractions: float = 1.0
    others: float = 1.0
    parameters: float = 1.0
    activations: float = 1.0
    bucketed: bool = False

    @property
    def parameter_price(self) -> Price:
        """The price of what travels beside compute."""
        return Price(self.parameters, Pricing(bucketed=self.bucketed), beside=True)

    @property
    def activation_price(self) -> Price:
        """The price of what holds up compute."""
        return Price(self.activations, Pricing())

    def of_op(self, op: ComputeOp) -> float:
        """By what the seconds of an op are multiplied."""
        return self.contractions if is_contraction(op) else self.others

    def price(self, move: ShardingChange) -> Price:
        """The price of a change of a value's sharding."""
        if isinstance(move.value, BlockArgument) or _is_for_updates(move):
            return self.parameter_price
        return self.activation_price


def _is_for_updates(move: ShardingChange) -> bool:
    """Whether only updates need a value in its other form, which may be a view of it or have another dtype."""
    if move.to is not None:
        is_handed_on = isinstance(move.to, ComputeOp) and is_view_or_cast(move.to)
        return train.is_update(move.to) or (is_handed_on and is_for_updates(move.to, is_view_or_cast))
    users = [use.operation for use in move.value.uses if isinstance(use.operation, ComputeOp)]
    return move.why == "copy" and all(map(train.is_update, users))


COMPLETION = Weights(contractions=1.0, others=0.0)
"""
Pins are completed with the least communication, but contractions count, or it would be cheapest to send nothing and
compute everything everywhere.
"""


@dataclass(frozen=True)
class BatchLoop:
    """
    A batch that will be cut into parts, one after the other.

    Args:
        count: of the parts.
        found: what works on one part at a time.
    """

    count: int
    found: BatchParts

    def turns_of(self, op: ComputeOp) -> Turns:
        """How often an op will run, and on what part."""
        choice = self.found.choices.get(op)
        return ONCE if choice is None else Turns(self.count, choice.factor if isinstance(choice, Split) else None)

    def parts_of(self, value: SSAValue) -> int:
        """In how many parts a value will be there."""
        return self.count if self.found.values[value].split_axes else 1
