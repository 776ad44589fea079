"""
Choose the values that forward keeps for backward; the others are recomputed. The choice is a minimum cut.

Each value that backward needs is either kept, at a price per byte, or recomputed, at the seconds of its op; then the
operands of that op are needed as well. At a fixed price the cheapest choice is a minimum cut, found exactly. An op is
on the sink side if it is run again, a value if backward can read it. An arc `op -> value` costs keeping the value, an
arc `source -> op` the seconds of the op, and an arc `operand -> op` cannot be cut. As the price rises, the seconds only
rise and the bytes only fall, so bisection finds the lowest price with few enough bytes.

Source: Jain et al., Checkmate, MLSys 2020 (the trade-off); the cut follows PyTorch's AOTAutograd, with seconds in place
of a ban on expensive ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

_UNITS = 10**8
"""The total capacity of running all ops again, as the solver takes integer capacities."""

_RANGE = 1e4
"""The range of prices: a factor below and above the price that makes keeping all values as costly as rerunning all."""

_ROUNDS = 24
"""The number of bisection steps on the price."""


@dataclass(frozen=True)
class ForwardValue:
    """
    A result of a forward op.

    Args:
        bytes: size if kept; infinite if the value must not be kept, such as a view, whose memory another value owns.
        is_needed: whether backward reads the value.
    """

    bytes: float
    is_needed: bool


@dataclass(frozen=True)
class ForwardOp:
    """
    A forward op.

    Args:
        seconds: time to run the op again; infinite if it must not run again.
        operands: numbers of the forward values that the op reads; arguments of the step have none.
        results: numbers of the values that the op computes.
    """

    seconds: float
    operands: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """
    A choice of ops to run again and values to keep.

    Args:
        again: numbers of the ops that run again.
        kept: numbers of the values that are kept.
        seconds: total time of the ops that run again.
        bytes: total size of the kept values.
    """

    again: frozenset[int]
    kept: frozenset[int]
    seconds: float
    bytes: float


def choose(ops: Sequence[ForwardOp], values: Sequence[ForwardValue], part: float) -> Cut:
    """
    Choose values to keep so that their bytes are at most `part` of the bytes that the fewest reruns would keep.

    Return the fastest choice that fits among the choices that are optimal at some price, or else the smallest choice.
    """
    graph = _CutGraph(ops, values)
    first = graph.cut(0.0)
    limit = part * first.bytes
    if first.bytes <= limit or not first.bytes:
        return first
    low, high = graph.price / _RANGE, graph.price * _RANGE
    best = graph.cut(high)
    if best.bytes > limit:
        return best
    for _ in range(_ROUNDS):
        price = sqrt(low * high)
        candidate = graph.cut(price)
        if candidate.bytes <= limit:
            best, high = candidate, price
        else:
            low = price
    return best


class _CutGraph:
    """The flow network; the capacities of its arcs depend on the price of a byte."""

    def __init__(self, ops: Sequence[ForwardOp], values: Sequence[ForwardValue]) -> None:
        from ortools.graph.python.max_flow import SimpleMaxFlow

        self.ops, self.values = ops, values
        self.flow: Any = SimpleMaxFlow()
        count = len(ops) + len(values)
        self.source, self.sink = count, count + 1
        total = sum(op.seconds for op in ops if op.seconds < inf)
        self.scale = _UNITS / total if total else 1.0
        everything = sum(value.bytes for value in values if value.bytes < inf)
        self.price = total / everything if everything else 0.0
        # Exceeds every cut through arcs that may be cut, at any price; small enough that sums fit into 64 bits.
        self.never = 2 * (round(_UNITS * (1 + _RANGE)) + count)
        arc = self.flow.add_arc_with_capacity
        self.keeping = {
            arc(number, len(ops) + value, 0): (number, value) for number, op in enumerate(ops) for value in op.results
        }
        for number, op in enumerate(ops):
            # At least one unit each, so that only necessary ops run again.
            arc(self.source, number, self.never if op.seconds == inf else 1 + round(op.seconds * self.scale))
            for operand in op.operands:
                arc(len(ops) + operand, number, self.never)
        for number, value in enumerate(values):
            if value.is_needed:
                arc(len(ops) + number, self.sink, self.never)

    def cut(self, price: float) -> Cut:
        """Return the choice of least cost at a price in seconds per byte."""
        for arc, (_, value) in self.keeping.items():
            size = self.values[value].bytes
            capacity = self.never if size == inf else round(size * price * self.scale)
            self.flow.set_arc_capacity(arc, capacity)
        status = self.flow.solve(self.source, self.sink)
        assert status == self.flow.OPTIMAL, f"a maximum flow has the status {status}"
        far: set[int] = set(self.flow.get_sink_side_min_cut())
        again = frozenset(number for number in range(len(self.ops)) if number in far)
        kept = frozenset(
            value for number, value in self.keeping.values() if number not in far and len(self.ops) + value in far
        )
        seconds = sum(self.ops[number].seconds for number in again)
        return Cut(again, kept, seconds, sum(self.values[value].bytes for value in kept))
