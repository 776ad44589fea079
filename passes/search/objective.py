"""What a strategy is charged for: which seconds count, how much, and how often."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from ...dialects.compute import ComputeOp
from ...ir.signatures import Split
from ..analysis.compute import ONCE, Turns
from ..analysis.step_prices import Pricing
from ..time.batch_parts import BatchParts


@dataclass(frozen=True)
class Price:
    """
    What counts of the seconds in which a value changes its sharding.

    Args:
        weight: by which they are multiplied.
        pricing: how collectives are priced.
        turns: in how many parts of the batch it does, one after the other.
        beside: whether that travels beside compute.
    """

    weight: float
    pricing: Pricing
    turns: int = 1
    beside: bool = False


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


@dataclass(frozen=True)
class Loop:
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
