"""
Rewrites of `make-batch-major`: views that merge or divide the dim of the batch, and ops along that dim.

Each function takes an op with an operand whose rows are known, and returns whether it handled the op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, plain_attribute, shape_of
from ...dialects.placed import element_of
from .batch_order import VIEWS, BatchOrder, hint_of
from .batch_places import BatchPlace, Shape, place_in

Rewrite = Callable[[BatchOrder, AtenOp], bool]


def _view(order: BatchOrder, op: AtenOp) -> bool:
    """Rewrite a view whose source or result may be batch-major."""
    source, target = op.args[0], shape_of(op.outs[0])
    place = order.places[source]
    stride = place.stride(shape_of(source))
    after = place_in(target, order.rows, stride)
    if after is None or not (place.is_merged or after.is_merged):
        order.give_in_order(op)
        if after is not None:
            order.note(op.outs[0], after, moved=False)
        return True
    places = place if place.is_merged else None, after if after.is_merged else None
    regrouped = order.regrouped(source, target, stride, places, op, hint_of(op.outs[0]))
    if regrouped is None:
        order.give_in_order(op)
        return True
    order.note(regrouped, after, moved=True)
    order.replace(op, [regrouped])
    return True


def _concatenate(order: BatchOrder, op: AtenOp) -> bool:
    """Rewrite `cat` along the dim of the batch to concatenate along the major factor."""
    result = op.outs[0]
    dim = op.arguments().get("dim", 0) % len(shape_of(result))
    known_places = [order.places.get(value) for value in op.args]
    places = [place for place in known_places if place is not None and place.dim == dim]
    if len(places) < len(known_places) or len({place.minor for place in places}) > 1:
        return False
    place = BatchPlace(dim, order.rows, sum(place.major for place in places), places[0].minor)
    shape = place.opened(shape_of(result))
    if place.major == len(places) and place.minor == 1:
        joined = order.make("stack", op.args, shape, op, f"{hint_of(result)}.stack", dim=dim + 1)
    else:
        opened = [order.opened(value, operand_place, op) for value, operand_place in zip(op.args, places, strict=True)]
        joined = order.make("cat", opened, shape, op, f"{hint_of(result)}.beside", dim=dim + 1)
    order.close(op, [joined], [place])
    return True


def _take_apart(order: BatchOrder, op: AtenOp) -> bool:
    """Rewrite `split` and `slice` along the dim of the batch if each part contains every row."""
    place, shape = order.places[op.args[0]], shape_of(op.args[0])
    dim = place.dim
    if op.arguments().get("dim", 0) % len(shape) != dim:
        return False
    sizes: list[int] = [shape_of(value)[dim] for value in op.outs]
    begin = _begin(op, shape[dim]) if op.overload == "slice.Tensor" else 0
    if op.arguments().get("step", 1) != 1 or any(size % place.block for size in (*sizes, begin)) or 0 in sizes:
        return False
    opened = order.opened(op.args[0], place, op)
    ends = list(accumulate(sizes, initial=begin))
    parts = [BatchPlace(dim, order.rows, size // place.block, place.minor) for size in sizes]
    pairs = zip(op.outs, parts, ends, strict=False)
    taken = [_slice(order, opened, value, part, end // place.block, op) for value, part, end in pairs]
    order.close(op, taken, parts)
    return True


def _slice(order: BatchOrder, opened: SSAValue, result: SSAValue, part: BatchPlace, begin: int, op: AtenOp) -> SSAValue:
    shape, hint = part.opened(shape_of(result)), f"{hint_of(result)}.beside"
    bounds = {"dim": part.dim + 1, "start": begin, "end": begin + part.major}
    return order.make("slice.Tensor", [opened], shape, op, hint, **bounds)


def _put_into_zeros(order: BatchOrder, op: AtenOp) -> bool:
    """Rewrite `slice_backward` along the dim of the batch for a slice that contains every row."""
    arguments, result = op.arguments(), op.outs[0]
    place, dim, size = order.places[op.args[0]], arguments["dim"], shape_of(result)
    if place.dim != dim % len(size):
        return False
    whole = size[place.dim]
    begin = _begin(op, whole)
    if arguments["step"] != 1 or begin % place.block or whole % place.block:
        return False
    after = BatchPlace(place.dim, order.rows, whole // place.block, place.minor)
    shape, start = after.opened(size), begin // place.block
    bounds = {"dim": place.dim + 1, "start": start, "end": start + place.major, "step": 1}
    opened = order.opened(op.args[0], place, op)
    hint = f"{hint_of(result)}.beside"
    padded = order.make("slice_backward", [opened], shape, op, hint, input_sizes=shape, **bounds)
    order.close(op, [padded], [after])
    return True


def _repeat(order: BatchOrder, op: AtenOp) -> bool:
    """Rewrite `repeat` of all rows."""
    place, result, repeats = order.places[op.args[0]], op.outs[0], list(op.arguments()["repeats"])
    dim = place.dim + len(repeats) - len(shape_of(op.args[0]))
    times = repeats[dim]
    if times <= 1:
        return False
    after = BatchPlace(dim, order.rows, place.major * times, place.minor)
    repeats[dim : dim + 1] = (1, times, *((1,) if place.minor > 1 else ()))
    opened = order.opened(op.args[0], place, op)
    shape = after.opened(shape_of(result))
    repeated = order.make("repeat", [opened], shape, op, f"{hint_of(result)}.beside", repeats=repeats)
    order.close(op, [repeated], [after])
    return True


def _draw(order: BatchOrder, op: AtenOp) -> bool:
    """Rewrite a random op on batch-major values to work in their own order, with the rows in a separate dim."""
    if order.moved.isdisjoint(op.args):
        return False
    tensors = [value for value in op.args if shape_of(value)]
    shape = shape_of(op.outs[0])
    place = next(order.places[value] for value in tensors if value in order.moved)
    same_place = all(shape_of(value) == shape and order.places.get(value, place) == place for value in tensors)
    # A random number depends on its position along the last dim and on its index in the other dims.
    if not same_place or place.dim == len(shape) - 1:
        return False
    apart, stride, operands = place.in_order(shape), place.stride(shape), list(op.args)
    for i, value in enumerate(operands):
        if shape_of(value):
            places = place if value in order.moved else None, None
            apart_value = order.regrouped(value, apart, stride, places, op, f"{hint_of(value)}.in_order")
            assert apart_value is not None
            operands[i] = apart_value
    new = _of_shape(op, operands, apart)
    order.block.insert_op_before(new, op)
    drawn: list[SSAValue] = []
    for value, result in zip(op.outs, new.outs, strict=True):
        closed = order.regrouped(result, shape, stride, (None, place), op, hint_of(value))
        assert closed is not None
        order.note(closed, place, moved=True)
        drawn.append(closed)
    order.replace(op, drawn)
    return True


def _of_shape(op: AtenOp, operands: Sequence[SSAValue], shape: Shape) -> AtenOp:
    attributes = dict(op.attributes)
    if "size" in attributes:
        attributes["size"] = plain_attribute(shape)
    types = [TensorType(element_of(value), shape) for value in op.outs]
    new = type(op)(operands=[operands], result_types=[types], attributes=attributes)
    new.location = op.location
    for old, result in zip(op.outs, new.outs, strict=True):
        result.name_hint = f"{hint_of(old)}.apart"
    return new


_REWRITES: dict[str, Rewrite] = {
    **dict.fromkeys(VIEWS, _view),
    "cat": _concatenate,
    **dict.fromkeys(("split.Tensor", "split_with_sizes", "slice.Tensor"), _take_apart),
    "slice_backward": _put_into_zeros,
    "repeat": _repeat,
}


def rewrite(order: BatchOrder, op: ComputeOp) -> bool:
    """Rewrite an op that has an operand whose rows are known, and return whether it was handled."""
    if not isinstance(op, AtenOp):
        return False
    handler = _draw if op.is_random else _REWRITES.get(op.overload)
    return handler is not None and handler(order, op)


def _begin(op: AtenOp, size: int) -> int:
    start = op.arguments().get("start") or 0
    return max(0, min(size, start + size if start < 0 else start))
