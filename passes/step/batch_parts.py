"""
Which ops of a step are micro-batched along a new axis, and which run once, before or after the loop over that axis.

The split of the batch's first dim is propagated through the step as a split over one more mesh axis. Nothing is chosen:
an op keeps the split of its operands, sums over the micro-batches stay partial through ops that are linear in them, and
every other op runs once. Two cases are special:

- An op in the loop may need a value of the whole batch. If that value depends on the batch alone (a count of labels),
  the ops that compute it run once, before the loop. Otherwise the step is refused, unless the axis will be unrolled and
  the op needs a sum: then both micro-batches are available half way.
- An op that uses the complete sum over all micro-batches runs after the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from xdsl.ir import Operation, OpResult, SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp, shape_of
from ...dialects.pipe import TransferOp
from ...ir.mesh import Axis, Mesh
from ...ir.rules import Rule
from ...ir.sharding import Reduction, Sharding
from ...ir.signatures import Choice, Linear, Signature, Split, signature
from ..errors import describe, fail
from .step_view import Input, value_label
from .whole_batch import why_whole


@dataclass(frozen=True)
class Batch:
    """
    How the batch is split over time.

    Args:
        rows: size of the first dim of every batch item that is split.
        axis: name of the new axis.
        parts: size of the new axis, the number of micro-batches.
        unrolled: whether reductions over the axis may feed ops that are split over it.
    """

    rows: int
    axis: str
    parts: int
    unrolled: bool = False

    @property
    def mesh(self) -> Mesh:
        """A mesh of the new axis alone."""
        return Mesh((Axis(self.axis, self.parts),))


@dataclass
class BatchParts:
    """
    The choice of every op and the sharding of every value, over the new axis alone.

    Batch items count as split, although the step receives them whole.
    """

    choices: dict[ComputeOp, Choice] = field(default_factory=dict[ComputeOp, Choice])
    values: dict[SSAValue, Sharding] = field(default_factory=dict[SSAValue, Sharding])


def find_parts(ops: Sequence[Operation], inputs: Sequence[Input], batch: Batch) -> BatchParts:
    """
    Return how the ops of a step, in program order, are micro-batched.

    Raises:
        OpFailure: at an op that needs the whole batch before all micro-batches have been computed.
    """
    return _PartPropagation(ops, inputs, batch).run()


class _PartPropagation:
    """A propagation over the ops, restarted whenever some ops turn out to belong before the loop."""

    def __init__(self, ops: Sequence[Operation], inputs: Sequence[Input], batch: Batch) -> None:
        self.ops, self.inputs, self.batch, self.mesh = ops, inputs, batch, batch.mesh
        self.before: set[Operation] = set()
        roles = (train.BATCH, train.CONSTANT, train.BUFFER, train.SEED)
        self.of_batch_alone: set[SSAValue] = {item.argument for item in inputs if item.role in roles}
        for op in ops:
            if isinstance(op, ComputeOp) and self.of_batch_alone.issuperset(op.args):
                self.of_batch_alone.update(op.outs)
        self.found, self.late = BatchParts(), set[SSAValue]()

    def run(self) -> BatchParts:
        while hoisted := self._walk():
            self.before |= hoisted
        self._split_what_is_used_by_parts()
        self._check_what_is_added_to()
        return self.found

    def _walk(self) -> set[Operation]:
        """Return ops that must move before the loop, or an empty set at the end."""
        self.found, self.late = BatchParts(), set[SSAValue]()
        for item in self.inputs:
            shape = shape_of(item.argument)
            splits = item.rows == self.batch.rows
            dims = [(self.batch.axis,) if splits and dim == 0 else () for dim in range(len(shape))]
            self.found.values[item.argument] = Sharding.of(dims)
        for op in self.ops:
            if isinstance(op, TransferOp):
                # Micro-batches are transferred one by one, and sums over them once they are complete.
                sharding = self.found.values[op.operand]
                if sharding.partial:
                    self.late.add(op.result)
                    sharding = Sharding.replicated(len(sharding.dims))
                elif op.operand in self.late:
                    self.late.add(op.result)
                self.found.values[op.result] = sharding
            elif isinstance(op, ComputeOp) and (hoisted := self._compute(op)):
                return hoisted
        return set()

    def _compute(self, op: ComputeOp) -> set[Operation]:
        split = [value for value in op.args if self.found.values[value].split_axes]
        if op in self.before or not split:
            self._enter(op, None if op in self.before else self._linear(op))
            return set()
        choice = self._split(op)
        if choice is None or train.is_update(op):
            return self._hoisted(split) | {op} if self.of_batch_alone.issuperset(split) else self._refuse_whole(op)
        late = [value for value in op.args if self.found.values[value].partial or value in self.late]
        if early := self._early(late):
            return self._hoisted(early)
        if late and not self.batch.unrolled:
            self._refuse_sum(op, late[0])
        self._enter(op, choice)
        return set()

    def _linear(self, op: ComputeOp) -> Choice:
        """Return the choice of an op without a split operand: sums stay partial if the op is linear in them."""
        partial = {i: self.found.values[value].partial for i, value in enumerate(op.args)}
        sums = frozenset(i for i, axes in partial.items() if axes)
        added = all(kind is Reduction.SUM for axes in partial.values() for _, kind in axes)
        if train.is_update(op):
            return None
        if added and sums and sums in op.rule().linear and self.late.isdisjoint(op.args):
            return Linear(sums)
        return None

    def _split(self, op: ComputeOp) -> Choice:
        """Return the choice to split the one factor that splits the operands, if the op can."""
        rule = op.rule()
        factors = {
            rule.leading(dim)
            for value, dims in zip(op.args, rule.operands, strict=True)
            for dim, spread in zip(dims, self.found.values[value].dims, strict=True)
            if spread.axes
        }
        factor = factors.pop() if len(factors) == 1 else None
        return Split(factor) if factor is not None and factor in rule.splittable() else None

    def _enter(self, op: ComputeOp, choice: Choice) -> None:
        shardings = self._signature(op.rule(), choice)
        if shardings is None:
            batch = self.batch
            fail(op, f"cannot be split with the batch of {batch.rows} rows into {batch.parts} parts; use fewer parts")
        self.found.choices[op] = choice
        self.found.values.update(zip(op.outs, shardings.results, strict=True))
        pairs = zip(op.args, shardings.operands, strict=True)
        summed = any(self.found.values[value].partial and not wanted.partial for value, wanted in pairs)
        if summed or not self.late.isdisjoint(op.args):
            self.late.update(op.outs)

    def _signature(self, rule: Rule, choice: Choice) -> Signature | None:
        return signature(rule, self.mesh, [choice])

    def _hoisted(self, values: Iterable[SSAValue]) -> set[Operation]:
        ops, pending = set[Operation](), list(values)
        while pending:
            value = pending.pop()
            if isinstance(value, OpResult) and value.op not in ops:
                ops.add(value.op)
                pending += value.op.operands
        return ops

    def _early(self, late: Sequence[SSAValue]) -> set[SSAValue]:
        """Return the nearest values behind `late` that depend on the batch alone, such as a count of labels."""
        early, seen, pending = set[SSAValue](), set[SSAValue](), list(late)
        while pending:
            value = pending.pop()
            if value in self.of_batch_alone:
                early.add(value)
            elif value not in seen and isinstance(op := value.owner, ComputeOp):
                seen.add(value)
                pending += [arg for arg in op.args if arg in self.late or self.found.values[arg].partial]
        return early

    def _refuse_whole(self, op: ComputeOp) -> NoReturn:
        cause, advice = why_whole(op, self.found.values)
        fail(
            op,
            f"it needs all {self.batch.rows} rows of the batch at once, so they cannot be split into"
            f' {self.batch.parts} parts along "{self.batch.axis}": {cause}; {advice}{self._mistaken(op)}',
        )

    def _mistaken(self, op: ComputeOp) -> str:
        """Return advice about the batch items that `op` reads directly: their first dim may not count rows."""
        split = [value for value in op.args if self.found.values[value].split_axes]
        pending, seen = [value for value in split if value in self.of_batch_alone], set[SSAValue]()
        while pending:
            seen.add(value := pending.pop())
            pending += value.op.operands if isinstance(value, OpResult) else ()
        items = [i.name.removeprefix("batch.") for i in self.inputs if i.rows == self.batch.rows and i.argument in seen]
        if not items or len(split) < 2:
            return ""
        which = f"batch item {items[0]!r} has" if len(items) == 1 else f"batch items {', '.join(map(repr, items))} have"
        return (
            f"; {which} a first dim of {self.batch.rows} as well: if that is not of rows, say which items have rows, by"
            " rows= of parallelize or TrainingStep"
        )

    def _refuse_sum(self, op: ComputeOp, value: SSAValue) -> NoReturn:
        sum_op = self._sum_behind(value)
        behind = f" (the sum over them is {describe(sum_op)})" if sum_op not in (None, value.owner) else ""
        fail(
            op,
            f"it needs {value_label(value)}, which is complete only after {self._all_parts}{behind}, for each of the"
            " parts; do not split the batch, or unroll two parts: split-batch{parts=2 unrolled=true} and duplex",
        )

    @property
    def _all_parts(self) -> str:
        return f'all {self.batch.parts} parts of the batch along "{self.batch.axis}"'

    def _sum_behind(self, value: SSAValue) -> ComputeOp | None:
        pending, seen = [value], set[SSAValue]()
        while pending:
            current = pending.pop(0)
            op = current.owner
            if current in seen or not isinstance(op, ComputeOp):
                continue
            seen.add(current)
            if self.found.values[current].partial and isinstance(self.found.choices[op], Split):
                return op
            pending += [operand for operand in op.args if operand in self.late or self.found.values[operand].partial]
        return None

    def _check_what_is_added_to(self) -> None:
        """Refuse ops that add the sum of all micro-batches to another value, which no single micro-batch may add."""
        for op, choice in self.found.choices.items():
            shardings = self._signature(op.rule(), choice)
            for index in sorted(op.rule().additive):
                value = op.args[index]
                if shardings is not None and shardings.operands[index].partial and not self.found.values[value].partial:
                    label = value_label(value)
                    fail(
                        op,
                        f"it must add to {label} {list(shape_of(value))} once, after {self._all_parts}; do not split"
                        f" the batch, or let the model add to zeros, and add the result to {label}",
                    )

    def _split_what_is_used_by_parts(self) -> None:
        """Micro-batch the ops that run once but whose results are used per micro-batch, where possible."""
        uses: dict[SSAValue, list[Sharding | None]] = {}
        for op in reversed(self.ops):
            if isinstance(op, ComputeOp):
                if self.found.choices[op] is None and (choice := self._wanted(op, uses)) is not None:
                    self._enter(op, choice)
                shardings = self._signature(op.rule(), self.found.choices[op])
                demands = shardings.operands if shardings is not None else (None,) * len(op.args)
            else:
                demands = (None,) * len(op.operands)
            for value, demand in zip(op.operands, demands, strict=True):
                uses.setdefault(value, []).append(demand)

    def _wanted(self, op: ComputeOp, uses: Mapping[SSAValue, list[Sharding | None]]) -> Choice:
        """Return the choice that gives all users of `op` the micro-batches that they demand, or None."""
        if op in self.before or train.is_update(op) or not self.late.isdisjoint(op.outs):
            return None
        rule = op.rule()
        if any(self.found.values[value].partial for value in op.args):
            return None
        wanted = {index: set(uses[value]) for index, value in enumerate(op.outs) if value in uses}
        # Each micro-batch has separate zeros to add to.
        summed = any(demand is not None and demand.partial for demands in wanted.values() for demand in demands)
        no_operands = frozenset[int]()
        zeros = Linear(no_operands) if summed and no_operands in rule.linear else None
        choice = zeros or self._split_as(rule, wanted)
        shardings = self._signature(rule, choice) if choice is not None else None
        fits = shardings is not None and all({shardings.results[index]} == demands for index, demands in wanted.items())
        return choice if fits else None

    def _split_as(self, rule: Rule, wanted: Mapping[int, set[Sharding | None]]) -> Choice:
        """Return the choice to split the one factor that gives users the split results that they demand."""
        factors = {
            rule.leading(rule.results[index][dim])
            for index, demands in wanted.items()
            for demand in demands
            for dim in ([dim for dim, spread in enumerate(demand.dims) if spread.axes] if demand is not None else [])
        }
        factor = factors.pop() if len(factors) == 1 else None
        return Split(factor) if factor is not None and factor in rule.splittable() else None
