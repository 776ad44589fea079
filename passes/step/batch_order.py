"""
The order of the elements of a step's values, while dims come to have the batch first: for `make-batch-major`.

What is known of every value: where the rows of the batch are in it, and whether it is batch-major by now though it was
not in the step that was given. What is made: views of values in either order.
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
"""How many ops back it is looked for whether a value's elements are alike."""


class BatchOrder:
    """
    The values of one step function, by the order of their elements.

    Args:
        rows: of the batch, several.
    """

    def __init__(self, func: FuncOp, inputs: Iterable[Input], rows: int) -> None:
        self.block: Block = func.body.block
        self.rows = rows
        self.places: dict[SSAValue, BatchPlace] = {}
        self.moved: set[SSAValue] = set()
        """The values that are batch-major and were not, in the step that was given."""
        self._other: dict[tuple[SSAValue, BatchPlace], SSAValue] = {}
        """By value, and the place in it that is merged: the same in the other order."""
        self._made: set[Operation] = set()
        self._replaced: list[Operation] = []
        for given in inputs:
            if given.rows == rows:
                self.places[given.argument] = BatchPlace(0, rows)

    def note(self, value: SSAValue, place: BatchPlace, *, moved: bool) -> None:
        """Say where the rows are in a value, and whether it is of those that are batch-major by now."""
        self.places[value] = place
        if moved and place.is_merged:
            self.moved.add(value)

    def give_in_order(self, op: Operation) -> None:
        """Give an op all of its operands in their own order."""
        for i, value in enumerate(op.operands):
            if value in self.moved:
                place = self.places[value]
                op.operands[i] = self._in_other_order(value, place, (place, None), op, f"{hint_of(value)}.in_order")

    def give_batch_major(self, op: Operation, index: int, place: BatchPlace) -> None:
        """
        Give an op an operand, in whose own order `place` is merged, batch-major; as it is, where all elements of the
        dim are alike.
        """
        value = op.operands[index]
        if value not in self.moved and not self._is_uniform(value, place.dim):
            found = self._in_other_order(value, place, (None, place), op, f"{hint_of(value)}.batch_major")
            self._other[found, place] = value
            self.note(found, place, moved=True)
            op.operands[index] = found

    def _in_other_order(
        self,
        value: SSAValue,
        place: BatchPlace,
        places: tuple[BatchPlace | None, BatchPlace | None],
        user: Operation,
        hint: str,
    ) -> SSAValue:
        """A value in another order, made where it is first used so."""
        if (value, place) not in self._other:
            shape = shape_of(value)
            found = self.regrouped(value, shape, place.stride(shape), places, user, hint)
            assert found is not None
            self._other[value, place] = found
        return self._other[value, place]

    def _is_uniform(self, value: SSAValue, dim: int, depth: int = 0) -> bool:
        """Whether all elements of a value along a dim are alike, whatever the batch is: as after an expansion."""
        op = value.owner
        if value in self.places or not isinstance(op, ComputeOp) or depends_on_place(op) or depth > _DEEPEST:
            return False
        rule = op.rule()
        factors = {factor for factor in rule.results[op.results.index(value)][dim] if rule.sizes[factor] > 1}
        if not factors.isdisjoint(rule.replicated) or not factors.isdisjoint(rule.indexed):
            return False
        along = [(i, d) for i, dims in enumerate(rule.operands) for d, of in enumerate(dims) if factors & {*of}]
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
        The elements of a value in the order and shape wanted, made in front of an op; None where no views give that.

        Args:
            stride, places: as in `regrouping`, the last before and after.
        """
        steps = regrouping(shape_of(value), target, stride, *places, self.rows)
        if steps is None:
            return None
        if steps.order:
            value = self.reshaped(value, steps.first, following, f"{hint}.apart")
            value = self.permuted(value, steps.order, following, hint if steps.permuted == target else f"{hint}.rows")
        return self.reshaped(value, target, following, hint)

    def reshaped(self, value: SSAValue, shape: Shape, following: Operation, hint: str) -> SSAValue:
        """A value under another shape, its elements in the order that they have."""
        while shape_of(value) != shape and self.is_made(value, VIEWS) and isinstance(value, OpResult):
            value = value.op.operands[0]
        if shape_of(value) == shape:
            return value
        return self.make("view", [value], shape, following, hint, size=shape)

    def permuted(self, value: SSAValue, order: Sequence[int], following: Operation, hint: str) -> SSAValue:
        """A permutation of dims, joined with those that made the value."""
        order, best = tuple(order), (value, tuple(order))
        is_copied = False
        while isinstance(owner := value.owner, AtenOp) and (owner.overload in PERMUTATIONS or owner.overload == _COPY):
            if owner.overload in PERMUTATIONS:
                inner = order_of(owner)
                order = tuple(inner[dim] for dim in order)
            value, is_copied = owner.args[0], is_copied or owner.overload == _COPY
            if order == tuple(range(len(order))):
                return value
            # A copy is for what comes after it: it is passed over only where all of it is not needed.
            if not is_copied:
                best = value, order
        value, order = best
        shape = shape_of(value)
        return self.make("permute", [value], [shape[dim] for dim in order], following, hint, dims=order)

    def opened(self, value: SSAValue, place: BatchPlace, op: AtenOp) -> SSAValue:
        """A value, batch-major or not merged, with rows, major and minor as dims."""
        return self.reshaped(value, place.opened(shape_of(value)), op, f"{hint_of(value)}.opened")

    def close(self, op: AtenOp, opened: Sequence[SSAValue], places: Sequence[BatchPlace]) -> None:
        """Put in the place of an op's results what was made of opened values."""
        closed: list[SSAValue] = []
        for value, made, place in zip(op.outs, opened, places, strict=True):
            closed.append(self.reshaped(made, shape_of(value), op, hint_of(value)))
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
        """An op of one result in front of another."""
        attributes = {key: plain_attribute(value) for key, value in given.items()}
        new = like(following, name, operands, [shape], hint, **attributes)
        self.block.insert_op_before(new, following)
        self._made.add(new)
        return new.outs[0]

    def replace(self, op: ComputeOp, values: Sequence[SSAValue]) -> None:
        """Let all users of an op's results use other values, of which places and order are known by now."""
        for old, new in zip(op.outs, values, strict=True):
            if old in self.places and new not in self.places:
                self.note(new, self.places[old], moved=old in self.moved)
            old.replace_all_uses_with(new)
        self._replaced.append(op)

    def is_made(self, value: SSAValue, names: Collection[str]) -> bool:
        """Whether a value is from an op, of one of these names, that was not in the step that was given."""
        return isinstance(op := value.owner, AtenOp) and op in self._made and op.overload in names

    def erase_unused(self) -> None:
        """Erase the ops that were replaced and all that only they used."""
        pending = list(self._replaced)
        while pending:
            op = pending.pop()
            is_used = any(result.first_use is not None for result in op.results)
            if op.parent is not None and isinstance(op, ComputeOp) and not is_used:
                pending += [value.owner for value in op.operands if isinstance(value.owner, Operation)]
                op.detach()
                op.erase()


def order_of(op: AtenOp) -> list[int]:
    """Per dim of what an op that permutes dims gives, the dim that it was."""
    return list(PERMUTATIONS[op.overload](op.instance(), len(shape_of(op.args[0]))))


def depends_on_place(op: ComputeOp) -> bool:
    """Whether a part of an op's results depends on where it starts."""
    localize = op.spec.localize if isinstance(op, AtenOp) else None
    return any(".start" in source for source in (localize or {}).values())


def hint_of(value: SSAValue) -> str:
    """The name of a value, or what to call one without a name."""
    return value.name_hint or "value"
