"""
Order of the elements of a step's values while `make-batch-major` moves the batch to the front of its dims.

`BatchOrder` records where the rows of the batch are in every value, and whether the value has become batch-major though
it was not in the input step. It inserts views that bring a value into either order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, OpResult, SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, plain_attribute, shape_of
from ...ir.ops.spec import OpInstance
from ...ir.ops.views import permutation, swap
from .batch_places import BatchPlace, Shape, regrouping
from .new_ops import like
from .step_view import Input

VIEWS = ("view", "_unsafe_view", "reshape")
"""The ops that give the same elements in the same order, under another shape."""

PERMUTATIONS: dict[str, Callable[[OpInstance, int], Sequence[int]]] = {
    "permute": permutation,
    "transpose.int": swap,
    "t": swap,
}
"""The ops that permute dims, and how to find their order."""

_COPY = "clone"
_DEEPEST = 32
"""Largest number of ops that `BatchOrder` follows backwards to prove that a value's elements are equal."""


class BatchOrder:
    """
    The order of the elements of every value of one step function.

    Args:
        rows: number of rows of the batch, at least 2.
    """

    def __init__(self, func: FuncOp, inputs: Iterable[Input], rows: int) -> None:
        self.block: Block = func.body.block
        self.rows = rows
        self.places: dict[SSAValue, BatchPlace] = {}
        self.moved: set[SSAValue] = set()
        """The values that are batch-major now and were not in the input step."""
        self._other: dict[tuple[SSAValue, BatchPlace], SSAValue] = {}
        """By value and its merged place: the same elements in the other order."""
        self._made: set[Operation] = set()
        self._replaced: list[Operation] = []
        for item in inputs:
            if item.rows == rows:
                self.places[item.argument] = BatchPlace(0, rows)

    def note(self, value: SSAValue, place: BatchPlace, *, moved: bool) -> None:
        """Record where the rows are in a value, and whether the value has become batch-major."""
        self.places[value] = place
        if moved and place.is_merged:
            self.moved.add(value)

    def give_in_order(self, op: Operation) -> None:
        """Replace the batch-major operands of an op by values in their own order."""
        for i, value in enumerate(op.operands):
            if value in self.moved:
                place = self.places[value]
                op.operands[i] = self._in_other_order(value, place, (place, None), op, f"{hint_of(value)}.in_order")

    def give_batch_major(self, op: Operation, index: int, place: BatchPlace) -> None:
        """
        Replace an operand of an op by its batch-major form, unless all elements along the dim are equal.

        Args:
            place: the merged place of the rows in the operand's own order.
        """
        value = op.operands[index]
        if value not in self.moved and not self._is_uniform(value, place.dim):
            reordered = self._in_other_order(value, place, (None, place), op, f"{hint_of(value)}.batch_major")
            self._other[reordered, place] = value
            self.note(reordered, place, moved=True)
            op.operands[index] = reordered

    def _in_other_order(
        self,
        value: SSAValue,
        place: BatchPlace,
        places: tuple[BatchPlace | None, BatchPlace | None],
        user: Operation,
        hint: str,
    ) -> SSAValue:
        if (value, place) not in self._other:
            shape = shape_of(value)
            reordered = self.regrouped(value, shape, place.stride(shape), places, user, hint)
            assert reordered is not None
            self._other[value, place] = reordered
        return self._other[value, place]

    def _is_uniform(self, value: SSAValue, dim: int, depth: int = 0) -> bool:
        """Return whether all elements along a dim are equal for every batch, as after an expansion."""
        op = value.owner
        if value in self.places or not isinstance(op, ComputeOp) or depends_on_place(op) or depth > _DEEPEST:
            return False
        rule = op.rule()
        factors = {factor for factor in rule.results[op.results.index(value)][dim] if rule.sizes[factor] > 1}
        if not factors.isdisjoint(rule.replicated) or not factors.isdisjoint(rule.indexed):
            return False
        along = [(i, d) for i, dims in enumerate(rule.operands) for d, names in enumerate(dims) if factors & {*names}]
        return all(self._is_uniform(op.args[i], d, depth + 1) for i, d in along)

    def regrouped(
        self,
        value: SSAValue,
        target: Shape,
        stride: int,
        places: tuple[BatchPlace | None, BatchPlace | None],
        following: Operation,
        hint: str,
    ) -> SSAValue | None:
        """
        Return a value in another order and shape, computed by views in front of an op, or None if no views do that.

        Args:
            stride, places: as in `regrouping`; `places` are its `before` and `after`.
        """
        steps = regrouping(shape_of(value), target, stride, *places, self.rows)
        if steps is None:
            return None
        if steps.order:
            value = self.reshaped(value, steps.first, following, f"{hint}.apart")
            value = self.permuted(value, steps.order, following, hint if steps.permuted == target else f"{hint}.rows")
        return self.reshaped(value, target, following, hint)

    def reshaped(self, value: SSAValue, shape: Shape, following: Operation, hint: str) -> SSAValue:
        """Return a value under another shape, with the same order of elements."""
        while shape_of(value) != shape and self.is_made(value, VIEWS) and isinstance(value, OpResult):
            value = value.op.operands[0]
        if shape_of(value) == shape:
            return value
        return self.make("view", [value], shape, following, hint, size=shape)

    def permuted(self, value: SSAValue, order: Sequence[int], following: Operation, hint: str) -> SSAValue:
        """Return a permutation of a value's dims, combined with the permutations that produced the value."""
        order, best = tuple(order), (value, tuple(order))
        is_copied = False
        while isinstance(owner := value.owner, AtenOp) and (owner.overload in PERMUTATIONS or owner.overload == _COPY):
            if owner.overload in PERMUTATIONS:
                inner = order_of(owner)
                order = tuple(inner[dim] for dim in order)
            value, is_copied = owner.args[0], is_copied or owner.overload == _COPY
            if order == tuple(range(len(order))):
                return value
            # A copy serves the ops after it, so it is skipped only if the whole chain is the identity.
            if not is_copied:
                best = value, order
        value, order = best
        shape = shape_of(value)
        return self.make("permute", [value], [shape[dim] for dim in order], following, hint, dims=order)

    def opened(self, value: SSAValue, place: BatchPlace, op: AtenOp) -> SSAValue:
        return self.reshaped(value, place.opened(shape_of(value)), op, f"{hint_of(value)}.opened")

    def close(self, op: AtenOp, opened: Sequence[SSAValue], places: Sequence[BatchPlace]) -> None:
        """Replace an op's results by values computed from opened operands, viewed in the shapes of the results."""
        closed: list[SSAValue] = []
        for value, computed, place in zip(op.outs, opened, places, strict=True):
            closed.append(self.reshaped(computed, shape_of(value), op, hint_of(value)))
            self.note(closed[-1], place, moved=True)
        self.replace(op, closed)

    def make(
        self,
        name: str,
        operands: Sequence[SSAValue],
        shape: Sequence[int],
        following: Operation,
        hint: str,
        **given: object,
    ) -> SSAValue:
        """Insert an op with one result in front of another op, and return the result."""
        attributes = {key: plain_attribute(value) for key, value in given.items()}
        new = like(following, name, operands, [shape], hint, **attributes)
        self.block.insert_op_before(new, following)
        self._made.add(new)
        return new.outs[0]

    def replace(self, op: ComputeOp, values: Sequence[SSAValue]) -> None:
        """Replace an op's results by other values, and record places and orders that are still missing for these."""
        for old, new in zip(op.outs, values, strict=True):
            if old in self.places and new not in self.places:
                self.note(new, self.places[old], moved=old in self.moved)
            old.replace_all_uses_with(new)
        self._replaced.append(op)

    def is_made(self, value: SSAValue, names: Collection[str]) -> bool:
        """Return whether a value is the result of an op with one of these names that this object inserted."""
        return isinstance(op := value.owner, AtenOp) and op in self._made and op.overload in names

    def erase_unused(self) -> None:
        """Erase the replaced ops, and all ops that only they used."""
        pending = list(self._replaced)
        while pending:
            op = pending.pop()
            is_used = any(result.first_use is not None for result in op.results)
            if op.parent is not None and isinstance(op, ComputeOp) and not is_used:
                pending += [value.owner for value in op.operands if isinstance(value.owner, Operation)]
                op.detach()
                op.erase()


def order_of(op: AtenOp) -> list[int]:
    """Return, for each result dim of an op that permutes dims, the dim of the operand."""
    return list(PERMUTATIONS[op.overload](op.instance(), len(shape_of(op.args[0]))))


def depends_on_place(op: ComputeOp) -> bool:
    """Return whether a shard of an op's results depends on the offset of the shard."""
    localize = op.spec.localize if isinstance(op, AtenOp) else None
    return any(".start" in source for source in (localize or {}).values())


def hint_of(value: SSAValue) -> str:
    """Return the name of a value, or `value` if it has none."""
    return value.name_hint or "value"
