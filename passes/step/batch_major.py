"""
The rewriting of a step so that no dim has something before the rows of the batch: for `make-batch-major`.

One walk over the ops knows of every value where the rows are, and which values are batch-major by now. An op that
treats all elements of a merged dim alike (its rule has one factor for it) stays as it is, on operands whose elements
come in another order. Views change between the orders; `_ALONG` are the ops that put together or take apart along the
dim of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import cast

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, SSAValue

from ...dialects import train
from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, plain_attribute, shape_of
from ...ir.ops.spec import Shape
from ...ir.ops.views import permutation, swap
from ...ir.rules import Rule
from .batch_places import BatchPlace, factor_of, place_in, place_of, regrouping, stands_alone
from .new_ops import like
from .step_view import Input

_VIEWS = ("view", "_unsafe_view", "reshape")
_PERMUTATIONS = {"permute": permutation, "transpose.int": swap, "t": swap}
_COPY = "clone"
_DEEPEST = 32
"""How many ops back it is looked for whether a value's elements are alike."""


class BatchMajor:
    """
    Rewrites one step function; one use.

    Args:
        rows: of the batch, several.
    """

    def __init__(self, func: FuncOp, inputs: Iterable[Input], rows: int) -> None:
        self.block: Block = func.body.block
        self.rows = rows
        self.places: dict[SSAValue, BatchPlace] = {}
        self.moved: set[SSAValue] = set()
        """The values that are batch-major and were not, in the step that was given."""
        self.other_order: dict[tuple[SSAValue, BatchPlace], SSAValue] = {}
        """By value, and the place in it that is merged: the same in the other order."""
        self.made: set[Operation] = set()
        self.replaced: list[Operation] = []
        for given in inputs:
            shape = shape_of(given.argument)
            if given.role == train.BATCH and shape and shape[0] == rows:
                self.places[given.argument] = BatchPlace(0, rows)

    def run(self) -> None:
        """Walk over the ops once; those that were replaced go, with all that nothing else needs."""
        for op in list(self.block.ops):
            if not isinstance(op, ComputeOp) or train.is_update(op):
                self._give_in_order(op)
            elif any(value in self.places for value in op.args):
                rewrite = _rewrite_of(op)
                if rewrite is None or not rewrite(self, cast("AtenOp", op)):
                    self._follow(op)
        _erase_unused(self.replaced)

    # What any op does.

    def _follow(self, op: ComputeOp) -> None:
        """
        Let an op work on values that are batch-major, if it treats all elements of their dims alike; else give it
        their own order.
        """
        rule = op.rule()
        placed = {i: self.places[value] for i, value in enumerate(op.args) if value in self.places}
        found = {factor_of(rule, i, place) for i, place in placed.items()}
        known = found.pop() if len(found) == 1 else None
        followed = known is not None and known[0] in rule.splittable() and known[0] not in rule.indexed
        moves = not self.moved.isdisjoint(op.args)
        if known is not None and followed and moves:
            followed = stands_alone(rule, known[0]) and not _depends_on_place(op)
        if known is None or not followed:
            self._give_in_order(op)
            return
        factor, within = known
        if within.is_merged:
            for i, value in enumerate(op.args):
                if value not in self.moved and (place := _place_of_operand(rule, i, factor, within)) is not None:
                    op.operands[i] = self._batch_major(value, place)
        for index, value in enumerate(op.outs):
            place = place_of(rule, index, factor, within)
            # A place that is merged without the value being batch-major could not be split.
            if place is not None and (moves or not place.is_merged):
                self._note(value, place, moved=moves)
        if isinstance(op, AtenOp) and op.overload in _PERMUTATIONS and _is_made(op.args[0], _PERMUTATIONS, self.made):
            self._replace(op, [self._permuted(op.args[0], _order_of(op), op, op.outs[0].name_hint or "permuted")])

    def _note(self, value: SSAValue, place: BatchPlace, *, moved: bool) -> None:
        self.places[value] = place
        if moved and place.is_merged:
            self.moved.add(value)

    def _give_in_order(self, op: Operation) -> None:
        """Give an op all of its operands in their own order."""
        for i, value in enumerate(op.operands):
            if value in self.moved:
                op.operands[i] = self._own_order(value)

    def _own_order(self, value: SSAValue) -> SSAValue:
        """A batch-major value in its own order."""
        key = value, self.places[value]
        if key not in self.other_order:
            self.other_order[key] = self._in_other_order(*key, (key[1], None), f"{_hint(value)}.in_order")
        return self.other_order[key]

    def _batch_major(self, value: SSAValue, place: BatchPlace) -> SSAValue:
        """A value in whose own order `place` is merged, batch-major; itself where all its elements there are alike."""
        if self._is_uniform(value, place.dim):
            return value
        if (value, place) not in self.other_order:
            found = self._in_other_order(value, place, (None, place), f"{_hint(value)}.batch_major")
            self.other_order[value, place] = found
            self.other_order[found, place] = value
            self._note(found, place, moved=True)
        return self.other_order[value, place]

    def _in_other_order(
        self, value: SSAValue, place: BatchPlace, places: tuple[BatchPlace | None, BatchPlace | None], hint: str
    ) -> SSAValue:
        """A value in another order, made where the value is made, for all that use it."""
        following = self.block.first_op if isinstance(value, BlockArgument) else value.owner.next_op
        assert following is not None
        shape = shape_of(value)
        found = self._regrouped(value, shape, place.stride(shape), places, following, hint)
        assert found is not None
        return found

    def _is_uniform(self, value: SSAValue, dim: int, depth: int = 0) -> bool:
        """Whether all elements of a value along a dim are alike, whatever the batch is: as after an expansion."""
        op = value.owner
        if value in self.places or not isinstance(op, ComputeOp) or _depends_on_place(op) or depth > _DEEPEST:
            return False
        rule = op.rule()
        factors = {factor for factor in rule.results[op.results.index(value)][dim] if rule.sizes[factor] > 1}
        if not factors.isdisjoint(rule.replicated) or not factors.isdisjoint(rule.indexed):
            return False
        along = [(i, d) for i, dims in enumerate(rule.operands) for d, of in enumerate(dims) if factors & {*of}]
        return all(self._is_uniform(op.args[i], d, depth + 1) for i, d in along)

    # Views.

    def _view(self, op: AtenOp) -> bool:
        """A view, of which source or result may be batch-major."""
        source, target = op.args[0], shape_of(op.outs[0])
        place = self.places[source]
        stride = place.stride(shape_of(source))
        after = place_in(target, self.rows, stride)
        if after is None or not (place.is_merged or after.is_merged):
            self._give_in_order(op)
            if after is not None:
                self._note(op.outs[0], after, moved=False)
            return True
        places = place if place.is_merged else None, after if after.is_merged else None
        hint = op.outs[0].name_hint or "view"
        found = self._regrouped(source, target, stride, places, op, hint)
        if found is None:
            self._give_in_order(op)
            return True
        self._note(found, after, moved=True)
        self._replace(op, [found])
        return True

    def _regrouped(
        self,
        value: SSAValue,
        target: Shape,
        stride: int,
        places: tuple[BatchPlace | None, BatchPlace | None],
        following: Operation,
        hint: str,
    ) -> SSAValue | None:
        """The elements of a value in the order and shape wanted; None where no views give that."""
        steps = regrouping(shape_of(value), target, stride, *places, self.rows)
        if steps is None:
            return None
        if steps.order:
            value = self._reshaped(value, steps.first, following, f"{hint}.apart")
            value = self._permuted(value, steps.order, following, hint if steps.permuted == target else f"{hint}.rows")
        return self._reshaped(value, target, following, hint)

    def _reshaped(self, value: SSAValue, shape: Shape, following: Operation, hint: str) -> SSAValue:
        while shape_of(value) != shape and _is_made(value, _VIEWS, self.made):
            value = cast("OpResult", value).op.operands[0]
        if shape_of(value) == shape:
            return value
        return self._make("view", [value], shape, following, hint, size=shape)

    def _permuted(self, value: SSAValue, order: Sequence[int], following: Operation, hint: str) -> SSAValue:
        """A permutation of dims, joined with those that made the value."""
        order, best = tuple(order), (value, tuple(order))
        is_copied = False
        while isinstance(owner := value.owner, AtenOp) and (owner.overload in _PERMUTATIONS or owner.overload == _COPY):
            if owner.overload in _PERMUTATIONS:
                inner = _order_of(owner)
                order = tuple(inner[dim] for dim in order)
            value, is_copied = owner.args[0], is_copied or owner.overload == _COPY
            if order == tuple(range(len(order))):
                return value
            if not is_copied:
                best = value, order
        value, order = best
        shape = shape_of(value)
        return self._make("permute", [value], [shape[dim] for dim in order], following, hint, dims=order)

    # Ops along the dim of the batch.

    def _concatenate(self, op: AtenOp) -> bool:
        """`cat` along the dim of the batch: along the major factors of it."""
        result = op.outs[0]
        dim = op.arguments().get("dim", 0) % len(shape_of(result))
        found = [self.places.get(value) for value in op.args]
        places = [place for place in found if place is not None and place.dim == dim]
        if len(places) < len(found) or len({place.minor for place in places}) > 1:
            return False
        place = BatchPlace(dim, self.rows, sum(place.major for place in places), places[0].minor)
        shape = place.opened(shape_of(result))
        if place.major == len(places) and place.minor == 1:
            joined = self._make("stack", op.args, shape, op, f"{_hint(result)}.stack", dim=dim + 1)
        else:
            opened = [self._opened(value, each, op) for value, each in zip(op.args, places, strict=True)]
            joined = self._make("cat", opened, shape, op, f"{_hint(result)}.beside", dim=dim + 1)
        self._close(op, [joined], [place])
        return True

    def _take_apart(self, op: AtenOp) -> bool:
        """`split` and `slice` along the dim of the batch, into parts that have all rows."""
        place, dim = self.places[op.args[0]], op.arguments().get("dim", 0) % len(shape_of(op.args[0]))
        if place.dim != dim:
            return False
        sizes = [shape_of(value)[dim] for value in op.outs]
        begin = _begin(op, shape_of(op.args[0])[dim]) if op.overload == "slice.Tensor" else 0
        if op.arguments().get("step", 1) != 1 or any(size % place.block for size in (*sizes, begin)) or 0 in sizes:
            return False
        opened = self._opened(op.args[0], place, op)
        ends = list(accumulate(sizes, initial=begin))
        parts = [BatchPlace(dim, self.rows, size // place.block, place.minor) for size in sizes]
        pairs = zip(op.outs, parts, ends, strict=False)
        taken = [self._slice(opened, value, part, end // place.block, op) for value, part, end in pairs]
        self._close(op, taken, parts)
        return True

    def _slice(self, opened: SSAValue, like_value: SSAValue, part: BatchPlace, begin: int, op: AtenOp) -> SSAValue:
        shape, hint = part.opened(shape_of(like_value)), f"{_hint(like_value)}.beside"
        bounds = {"dim": part.dim + 1, "start": begin, "end": begin + part.major}
        return self._make("slice.Tensor", [opened], shape, op, hint, **bounds)

    def _put_into_zeros(self, op: AtenOp) -> bool:
        """`slice_backward` along the dim of the batch, of a slice that has all rows."""
        given, result = op.arguments(), op.outs[0]
        place, dim, size = self.places[op.args[0]], given["dim"], shape_of(result)
        if place.dim != dim % len(size):
            return False
        whole = size[place.dim]
        begin = _begin(op, whole)
        if given["step"] != 1 or begin % place.block or whole % place.block:
            return False
        after = BatchPlace(place.dim, self.rows, whole // place.block, place.minor)
        shape, start = after.opened(size), begin // place.block
        bounds = {"dim": place.dim + 1, "start": start, "end": start + place.major, "step": 1}
        opened = self._opened(op.args[0], place, op)
        hint = f"{_hint(result)}.beside"
        made = self._make("slice_backward", [opened], shape, op, hint, input_sizes=shape, **bounds)
        self._close(op, [made], [after])
        return True

    def _repeat(self, op: AtenOp) -> bool:
        """`repeat` of all rows some times over."""
        place, result, repeats = self.places[op.args[0]], op.outs[0], list(op.arguments()["repeats"])
        dim = place.dim + len(repeats) - len(shape_of(op.args[0]))
        times = repeats[dim]
        if times <= 1:
            return False
        after = BatchPlace(dim, self.rows, place.major * times, place.minor)
        inside = (1, times, *((1,) if place.minor > 1 else ()))
        repeats[dim : dim + 1] = inside
        opened = self._opened(op.args[0], place, op)
        shape = after.opened(shape_of(result))
        made = self._make("repeat", [opened], shape, op, f"{_hint(result)}.beside", repeats=repeats)
        self._close(op, [made], [after])
        return True

    def _draw(self, op: AtenOp) -> bool:
        """A random op on values that are batch-major: in their own order, with the rows in a dim of their own."""
        if self.moved.isdisjoint(op.args):
            return False
        tensors = [value for value in op.args if shape_of(value)]
        shape = shape_of(op.outs[0])
        place = next(self.places[value] for value in tensors if value in self.moved)
        alike = all(shape_of(value) == shape and self.places.get(value, place) == place for value in tensors)
        # Numbers are those of a row, along the last dim, and of a place in it.
        if not alike or place.dim == len(shape) - 1:
            return False
        apart, stride, hint = place.in_order(shape), place.stride(shape), op.outs[0].name_hint or "drawn"
        operands = list(op.args)
        for i, value in enumerate(operands):
            if shape_of(value):
                places = place if value in self.moved else None, None
                found = self._regrouped(value, apart, stride, places, op, f"{_hint(value)}.in_order")
                assert found is not None
                operands[i] = found
        attributes = dict(op.attributes)
        if "size" in attributes:
            attributes["size"] = plain_attribute(apart)
        types = [TensorType(_element(value), apart) for value in op.outs]
        new = type(op)(operands=[operands], result_types=[types], attributes=attributes)
        new.location = op.location
        self.block.insert_op_before(new, op)
        drawn: list[SSAValue] = []
        for value, made in zip(op.outs, new.outs, strict=True):
            made.name_hint = f"{value.name_hint or hint}.apart"
            closed = self._regrouped(made, shape, stride, (None, place), op, value.name_hint or hint)
            assert closed is not None
            self._note(closed, place, moved=True)
            drawn.append(closed)
        self._replace(op, drawn)
        return True

    def _opened(self, value: SSAValue, place: BatchPlace, op: AtenOp) -> SSAValue:
        """A value, batch-major or not merged, with rows, major and minor as dims."""
        return self._reshaped(value, place.opened(shape_of(value)), op, f"{_hint(value)}.opened")

    def _close(self, op: AtenOp, opened: Sequence[SSAValue], places: Sequence[BatchPlace]) -> None:
        """Put in the place of an op's results what was made of opened values."""
        closed: list[SSAValue] = []
        for value, made, place in zip(op.outs, opened, places, strict=True):
            closed.append(self._reshaped(made, shape_of(value), op, _hint(value)))
            self._note(closed[-1], place, moved=True)
        self._replace(op, closed)

    # The IR.

    def _make(
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
        new = like(following, name, operands, [TensorType(_element(operands[0]), shape)], hint, **attributes)
        self.block.insert_op_before(new, following)
        self.made.add(new)
        return new.outs[0]

    def _replace(self, op: ComputeOp, values: Sequence[SSAValue]) -> None:
        """Let all users of an op's results use other values, of which places and order are known by now."""
        for old, new in zip(op.outs, values, strict=True):
            if old in self.places and new not in self.places:
                self._note(new, self.places[old], moved=old in self.moved)
            old.replace_all_uses_with(new)
        self.replaced.append(op)


_REWRITES: dict[str, Callable[[BatchMajor, AtenOp], bool]] = {
    **dict.fromkeys(_VIEWS, BatchMajor._view),
    "cat": BatchMajor._concatenate,
    **dict.fromkeys(("split.Tensor", "split_with_sizes", "slice.Tensor"), BatchMajor._take_apart),
    "slice_backward": BatchMajor._put_into_zeros,
    "repeat": BatchMajor._repeat,
}


def _rewrite_of(op: ComputeOp) -> Callable[[BatchMajor, AtenOp], bool] | None:
    """What may be done instead of an op; it says whether it was."""
    if not isinstance(op, AtenOp):
        return None
    return BatchMajor._draw if op.is_random else _REWRITES.get(op.overload)


def _order_of(op: AtenOp) -> list[int]:
    """Per dim of what an op that permutes dims gives, the dim that it was."""
    return list(_PERMUTATIONS[op.overload](op.instance(), len(shape_of(op.args[0]))))


def _depends_on_place(op: ComputeOp) -> bool:
    """Whether a part of an op's results depends on where it starts."""
    localize = op.spec.localize if isinstance(op, AtenOp) else None
    return any(".start" in source for source in (localize or {}).values())


def _place_of_operand(rule: Rule, operand: int, factor: str, within: BatchPlace) -> BatchPlace | None:
    """Where the rows are in an operand that has the factor for a dim; None where it lacks it."""
    at = next((number for number, dim in enumerate(rule.operands[operand]) if factor in dim), None)
    return replace(within, dim=at) if at is not None else None


def _begin(op: AtenOp, size: int) -> int:
    """Where a slice of a dim of `size` begins."""
    start = op.arguments().get("start") or 0
    return max(0, min(size, start + size if start < 0 else start))


def _element(value: SSAValue) -> Attribute:
    return cast("TensorType[Attribute]", value.type).get_element_type()


def _hint(value: SSAValue) -> str:
    return value.name_hint or "value"


def _is_made(value: SSAValue, names: Collection[str], made: Collection[Operation]) -> bool:
    return isinstance(op := value.owner, AtenOp) and op in made and op.overload in names


def _erase_unused(ops: Sequence[Operation]) -> None:
    """Erase ops that nothing uses, and then those that only they used."""
    pending = list(ops)
    while pending:
        op = pending.pop()
        if op.parent is not None and isinstance(op, ComputeOp) and not any(result.first_use for result in op.results):
            pending += [value.owner for value in op.operands if isinstance(value.owner, Operation)]
            op.detach()
            op.erase()
