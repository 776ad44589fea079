"""
Divide the loop of a temporal axis into phases, and let its copies take turns phase by phase.

A phase is a communication step, followed by the computation that needs it. The phase of an op is the number of
communications on the longest dependence path to the op.

Source: HiDup 4.1 (stages, which are phases here) and 5 (the compiler's order).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult

from ...ir.mesh import Mesh
from ..step.loop import communicates, is_in_loop, is_sum_over

Turn: TypeAlias = tuple[int, str, Operation]
"""The number of a copy, and its action on an op: `start`, `wait` or `compute`."""


@dataclass(frozen=True)
class UnrolledLoop:
    """
    A loop to unroll: the ops of a step, and the subset that a temporal axis repeats.

    Args:
        ops: all ops of the step except the return, in program order.
        inside: the ops that work on parts along `axis`, repeated in each copy; all others run once.
        copies: number of parts of the axis.
    """

    ops: tuple[Operation, ...]
    inside: frozenset[Operation]
    mesh: Mesh
    axis: str
    copies: int

    @classmethod
    def of(cls, func: FuncOp, mesh: Mesh, axis: str) -> UnrolledLoop:
        """Return the loop over `axis` in a step function."""
        block = func.body.block
        ops = tuple(op for op in block.ops if op is not block.last_op)
        return cls(ops, frozenset(op for op in ops if is_in_loop(op, axis)), mesh, axis, mesh.axis(axis).size)

    def sends(self, op: Operation) -> bool:
        """Whether each copy of an op is a communication."""
        return op in self.inside and communicates(op, self.mesh)

    def sums(self, op: Operation) -> bool:
        """Whether an op reduces over the parts."""
        return is_sum_over(op, self.axis)

    @cached_property
    def phase(self) -> Mapping[Operation, int]:
        """
        The number of the phase of each op.

        An op in the loop that reads a sum over the parts is in a later phase than the ops that compute the parts.
        """
        number: dict[Operation, int] = {}
        late: set[Operation] = set()
        for op in self.ops:
            sources = [value.op for value in op.operands if isinstance(value, OpResult)]
            before = max((number[source] for source in sources), default=0)
            if op not in self.inside and any(source in self.inside or source in late for source in sources):
                late.add(op)
            # A sum over all parts is complete only when its phase is over.
            waits = op in self.inside and any(source in late and number[source] == before for source in sources)
            number[op] = before + (waits or self.sends(op))
        return number


def phase_turns(loop: UnrolledLoop) -> Iterator[Turn]:
    """
    Yield the turns of copies that go through the phases together: while one communicates, the others compute.

    Before a copy computes a phase, it waits for the phase's communication, and the previous copy starts its next
    communication. For copies a and b: `wait a k; start b k; compute a k; wait b k; start a k+1; compute b k`.
    """
    count = max((loop.phase[op] for op in loop.inside), default=-1) + 1
    phases: list[tuple[list[Operation], list[Operation]]] = [([], []) for _ in range(count)]
    for op in loop.ops:
        if op in loop.inside:
            phases[loop.phase[op]][0 if loop.sends(op) else 1].append(op)
    units = [(number, copy) for number in range(count) for copy in range(loop.copies)]
    for place, (number, copy) in enumerate(units):
        sent, computed = phases[number]
        yield from ((copy, "wait", op) for op in sent)
        if place:
            before, other = units[place - 1]
            following = phases[before + 1][0] if before + 1 < count else ()
            yield from ((other, "start", op) for op in following)
        yield from ((copy, "compute", op) for op in computed)
