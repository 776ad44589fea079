"""
Which values forward keeps for backward, and which are computed again: a minimum cut.

Every value that backward needs is either kept, at a price per byte, or computed again, at the seconds of its op, and
then what that op takes is needed as well. At a given price the choice of least cost is a minimum cut, found exactly:
an op is on the far side if it is run again, a value if backward can have it; `op -> value` costs what keeping the value
does, `source -> op` the seconds of the op, and `operand <- op` cannot be cut. Between prices, the seconds only rise and
the bytes only fall: the lowest price at which no more than so many bytes are kept is found by bisection.

Source: Jain et al., Checkmate, MLSys 2020 (the trade); the cut is that of PyTorch's AOTAutograd with seconds in the
place of a ban on expensive ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

_UNITS = 10**8
"""What running all ops again counts: capacities are integers."""

_RANGE = 1e4
"""
By how much the lowest and the highest price are below and above that at which keeping everything costs what running
everything again does.
"""

_ROUNDS = 24
"""How often the range of prices is halved."""


@dataclass(frozen=True)
class ForwardValue:
    """
    A value that an op of forward gives.

    Args:
        bytes: what keeping it takes; infinite where it must not be kept (of a view, what it looks at is).
        is_needed: whether backward takes it.
    """

    bytes: float
    is_needed: bool


@dataclass(frozen=True)
class ForwardOp:
    """
    An op of forward.

    Args:
        seconds: of running it again; infinite where that must not be.
        operands: the numbers of the values it takes, of those that ops of forward give.
        results: the numbers of the values it gives.
    """

    seconds: float
    operands: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """
    What is run again, by number of op, and what is kept, by number of value.

    Args:
        seconds: of what is run again.
        bytes: of what is kept.
    """

    again: frozenset[int]
    kept: frozenset[int]
    seconds: float
    bytes: float


def choose(ops: Sequence[ForwardOp], values: Sequence[ForwardValue], part: float) -> Cut:
    """
    What is kept and run again so that the kept bytes are at most `part` of what they are where as little as possible is
    run again; at the least seconds of all choices that are best at one price. Where that cannot be, the least bytes.
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
        found = graph.cut(price)
        if found.bytes <= limit:
            best, high = found, price
        else:
            low = price
    return best


class _CutGraph:
    """The arcs of the cut, whose capacities depend on the price of a byte."""

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
        # More than any cut through arcs that may be cut, at any price; few enough that so many fit into 64 bits.
        self.never = 2 * (round(_UNITS * (1 + _RANGE)) + count)
        arc = self.flow.add_arc_with_capacity
        self.keeping = {
            arc(number, len(ops) + value, 0): (number, value) for number, op in enumerate(ops) for value in op.results
        }
        for number, op in enumerate(ops):
            # At least one unit, so that nothing is run again for nothing.
            arc(self.source, number, self.never if op.seconds == inf else 1 + round(op.seconds * self.scale))
            for operand in op.operands:
                arc(len(ops) + operand, number, self.never)
        for number, value in enumerate(values):
            if value.is_needed:
                arc(len(ops) + number, self.sink, self.never)

    def cut(self, price: float) -> Cut:
        """The choice of least cost at a price in seconds per byte."""
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
