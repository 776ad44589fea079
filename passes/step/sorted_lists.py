"""Analyses of sorts and lists before `sort-within-rows` rewrites them."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, shape_of
from .batch_order import VIEWS
from .batch_places import BatchPlace, factor_of, place_in, place_of

SORTS = ("sort", "sort.stable", "argsort")

FACTORIES = (
    *("zeros", "ones", "full", "empty.memory_format", "zeros_like", "ones_like", "full_like", "empty_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
)
"""The ops that return a tensor whose elements are all equal, or not written yet."""

RENAMED = (*VIEWS, "unsqueeze", "squeeze.dim", "squeeze.dims", "squeeze", "_to_copy", "clone")
"""The ops that change the shape or dtype of elements but not their order; places stay places."""


def note_places(places: dict[SSAValue, BatchPlace], op: ComputeOp, rows: int) -> None:
    """Record where the rows of the batch are in the results of an op, if the rows lead their dim."""
    placed = {i: places[value] for i, value in enumerate(op.args) if value in places}
    if not placed:
        return
    if isinstance(op, AtenOp) and op.overload in VIEWS:
        stride = placed[0].stride(shape_of(op.args[0]))
        viewed = place_in(shape_of(op.outs[0]), rows, stride)
        if viewed is not None and not viewed.is_merged:
            places[op.outs[0]] = viewed
        return
    rule = op.rule()
    factors = {factor_of(rule, i, place) for i, place in placed.items()}
    if len(factors) != 1 or (only := factors.pop()) is None or only[0] not in rule.splittable():
        return
    for value, dims in zip(op.outs, rule.results, strict=True):
        place = place_of(dims, rule, *only)
        if place is not None and not place.is_merged:
            places[value] = place


def divisor_of(op: AtenOp) -> int | None:
    """Return the integer that an op divides its operand by, rounding down, or None for other ops."""
    args = op.arguments()
    is_floor = op.overload == "floor_divide" or args.get("rounding_mode") in ("floor", "trunc")
    by = args.get("other")
    return by if is_floor and len(op.args) == 1 and isinstance(by, int) and by > 0 else None


def repeats_of(value: SSAValue) -> int | None:
    """Return how often each number occurs in a list of constants 0, 0, 1, 1, 2, 2, ..., or None for other values."""
    op, length = value.owner, shape_of(value)[0]
    if not isinstance(op, AtenOp) or len(shape_of(value)) != 1:
        return None
    if op.overload.startswith("arange"):
        return 1 if _counts_from_zero(op, length) else None
    if (by := divisor_of(op)) is not None:
        inner = repeats_of(op.args[0])
        return inner * by if inner is not None else None
    # The rest matches arange(t)[:, None].expand(t, k).reshape(t * k), where [:, None] is an unsqueeze or a view.
    if op.overload not in (*VIEWS, "clone"):
        return None
    while isinstance(op, AtenOp) and op.overload in (*VIEWS, "clone"):
        value = op.args[0]
        op = value.owner
    if not isinstance(op, AtenOp) or op.overload != "expand":
        return None
    wide, shape = shape_of(value), shape_of(op.args[0])
    source = op.args[0].owner
    while isinstance(source, AtenOp) and source.overload in ("unsqueeze", *VIEWS):
        source = source.args[0].owner
    is_column = len(wide) == 2 and shape == (wide[0], 1)
    if is_column and isinstance(source, AtenOp) and source.overload.startswith("arange"):
        return wide[1] if _counts_from_zero(source, wide[0]) else None
    return None


def _counts_from_zero(op: AtenOp, length: int) -> bool:
    args = op.arguments()
    return not op.args and args.get("start", 0) == 0 and args.get("step", 1) == 1 and args.get("end") == length


def ends_count(ends: SSAValue, sort: AtenOp, groups: int) -> bool:
    """Return whether `ends` holds the end of each of the groups 0, 1, ... among the keys that a sort has sorted."""
    keys = {_bare(sort.args[0]), _bare(sort.outs[0])}
    op = _bare(ends).owner
    if not isinstance(op, AtenOp) or sort.overload == "argsort" or sort.arguments().get("descending"):
        return False
    if op.overload == "searchsorted.Tensor":
        wanted = _bare(op.args[1]).owner
        is_right = op.arguments().get("right", False) or op.arguments().get("side") == "right"
        return is_right and _bare(op.args[0]) is _bare(sort.outs[0]) and _is_arange(wanted, groups)
    if op.overload != "cumsum":
        return False
    return _counts(_bare(op.args[0]).owner, keys, groups)


def _counts(op: object, keys: set[SSAValue], groups: int) -> bool:
    """Return whether an op counts how often each of the groups occurs among the keys."""
    if not isinstance(op, AtenOp):
        return False
    args = op.arguments()
    if op.overload == "histc":
        bounds = args.get("min", 0), args.get("max", 0)
        return args.get("bins", 100) == groups and bounds == (0, groups - 1) and _bare(op.args[0]) in keys
    if op.overload != "sum.dim_IntList" or list(args["dim"]) not in ([0], [-2]):
        return False
    equal = _bare(op.args[0]).owner
    if not isinstance(equal, AtenOp) or equal.overload != "eq.Tensor":
        return False
    key, group = equal.args
    return len(shape_of(key)) == 2 and shape_of(key)[1] == 1 and _bare(key) in keys and _is_arange(group.owner, groups)


def _is_arange(op: object, groups: int) -> bool:
    return isinstance(op, AtenOp) and op.overload.startswith("arange") and _counts_from_zero(op, groups)


def _bare(value: SSAValue) -> SSAValue:
    """Return the value behind casts, copies and views."""
    while isinstance(op := value.owner, AtenOp) and op.overload in RENAMED:
        value = op.args[0]
    return value
