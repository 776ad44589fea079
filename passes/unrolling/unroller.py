"""Write the copies of a loop into the step, in a given order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import ascii_lowercase

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, StringAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult, SSAValue

from ...dialects.pipe import TransferOp
from ...dialects.placed import AT, parts_of, sharding_of
from ...dialects.sharding_attrs import ShardingAttr
from ...dialects.spmd import AccumulateOp, CollectiveOp, StartOp, WaitOp
from ...dialects.step import BACKWARD
from ..errors import fail
from ..step.memory_plan import forget_memory_plan
from ..step.step_view import value_label
from .phases import Turn, UnrolledLoop

PARTS = ascii_lowercase
"""Suffixes of the parts in the names of values."""


def check_loop(loop: UnrolledLoop) -> None:
    """Fail if a value of the loop is read outside except by a reduction, or if a sum reads a value from outside."""
    for op in loop.ops:
        if op not in loop.inside:
            _check_sum(loop, op)
            continue
        for use in (use for result in op.results for use in result.uses):
            user = use.operation
            if user not in loop.inside and not loop.sums(user):
                value = user.operands[use.index]
                fail(
                    user,
                    f'reads {value_label(value)} outside the loop over "{loop.axis}", where it differs between parts; '
                    "expected a reduction over the axis: run insert-resharding before duplex",
                )


def _check_sum(loop: UnrolledLoop, op: Operation) -> None:
    for value in op.operands if loop.sums(op) else ():
        if not isinstance(value, OpResult) or value.op not in loop.inside:
            fail(op, f'sums {value_label(value)} over "{loop.axis}"; expected a value that the loop over it computes')


class Unroller:
    """
    Writes a copy of a loop's ops for each part, in the order of turns; an op that runs once is written before its first
    user. Each part is added to the sums over the parts as soon as it is computed. One use.
    """

    def __init__(self, func: FuncOp, loop: UnrolledLoop) -> None:
        self.block, self.loop = func.body.block, loop
        forget_memory_plan(self.block)
        self.once = {op for op in loop.ops if op not in loop.inside}
        self.made: tuple[dict[SSAValue, SSAValue], ...] = tuple({} for _ in range(loop.copies))
        self.totals: dict[Operation, list[SSAValue]] = {}
        self.started: dict[tuple[int, Operation], StartOp] = {}
        self.written: set[Operation] = set()

    def write(self, turns: Iterable[Turn]) -> None:
        """Empty the block and fill it again: the loop in the order of `turns`, other ops before their first users."""
        end = self.block.last_op
        assert end is not None, "a step function returns"
        turns = list(turns)
        for op in list(self.block.ops):
            op.detach()
        do = {"start": self._start, "wait": self._wait, "compute": self._compute}
        for copy, step, op in turns:
            do[step](copy, op)
        for op in (*self.loop.ops, end):
            if op not in self.loop.inside:
                self._once(op)
        for op in reversed(self.loop.ops):
            if op in self.loop.inside or self.loop.sums(op):
                op.erase()

    def _compute(self, part: int, op: Operation) -> None:
        """Write the copy of an op for one part, followed by the sums that read it."""
        self._needed(op)
        copy = op.clone(dict(self.made[part]))
        copy.attributes[AT] = self._at(op, part)
        if isinstance(copy, TransferOp):
            copy.label = StringAttr(f"{copy.label.data}.{PARTS[part]}")
        self._add(copy, op)
        self._enter(part, op.results, copy.results)

    def _start(self, part: int, op: Operation) -> None:
        assert isinstance(op, CollectiveOp)
        self._needed(op)
        method = op.method.data if op.method is not None else None
        start = StartOp(op.KIND, [self.made[part].get(op.operand, op.operand)], [op.out_sharding], method)
        hint = op.result.name_hint
        start.token.name_hint = f"{hint or op.KIND}.{PARTS[part]}.started"
        start.attributes[AT] = self._at(op, part)
        self.started[part, op] = start
        self._add(start, op)

    def _wait(self, part: int, op: Operation) -> None:
        wait = WaitOp(self.started.pop((part, op)))
        wait.attributes[AT] = self._at(op, part)
        self._add(wait, op)
        self._enter(part, op.results, wait.results)

    def _at(self, op: Operation, part: int) -> DictionaryAttr:
        at = {**parts_of(op), self.loop.axis: part}
        return DictionaryAttr({name: IntegerAttr(index, i64) for name, index in at.items()})

    def _enter(self, part: int, results: Sequence[SSAValue], copies: Sequence[SSAValue]) -> None:
        for result, copy in zip(results, copies, strict=True):
            copy.name_hint = f"{result.name_hint}.{PARTS[part]}" if result.name_hint else None
            self.made[part][result] = copy
            for op in dict.fromkeys(use.operation for use in result.uses):
                if self.loop.sums(op):
                    assert isinstance(op, CollectiveOp)
                    self._sum(op, copy)

    def _sum(self, op: CollectiveOp, part: SSAValue) -> None:
        """Add one more part to a sum over all parts."""
        parts = self.totals.setdefault(op, [])
        parts.append(part)
        if len(parts) == 1:
            return
        is_complete = len(parts) == self.loop.copies
        so_far = ShardingAttr.of(op.out_sharding.data.mesh, sharding_of(op.operand))
        total = AccumulateOp(parts[-2], part, op.out_sharding if is_complete else so_far)
        hint = op.result.name_hint
        total.result.name_hint = hint if is_complete or not hint else f"{hint}.{len(parts)}"
        self._add(total, op)
        parts[-1] = total.result
        if is_complete:
            self.written.add(op)
            op.result.replace_all_uses_with(total.result)

    def _needed(self, op: Operation) -> None:
        """Write the ops that run once and compute operands of `op`."""
        for value in op.operands:
            if isinstance(value, OpResult) and value.op in self.once:
                self._once(value.op)

    def _once(self, op: Operation) -> None:
        """Write an op that runs once, after its operands; a sum is already written, with its last part."""
        if op in self.written:
            return
        assert not self.loop.sums(op), "turns respect what ops need"
        self.written.add(op)
        self._needed(op)
        self.block.add_op(op)

    def _add(self, op: Operation, like: Operation) -> None:
        """Append `op` with the location and the backward mark of `like`."""
        op.location = like.location
        if BACKWARD in like.attributes:
            op.attributes[BACKWARD] = like.attributes[BACKWARD]
        self.block.add_op(op)
