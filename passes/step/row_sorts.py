"""
Sorts across the whole batch, rewritten as sorts within each row of the batch for `sort-within-rows`.

A step with a batch of b rows has lists of b x n elements (tokens, or choices of tokens), n for each row of the batch.
If the ops after a sort of such a list treat all elements equally or sum over all of them, each row of the batch can
sort its own n elements instead: only the order of the elements changes. The *twin* of a value is its equivalent in that
program: it has the same size and its elements in the other order. Places within a list are then counted from the
beginning of their row of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import UnitAttr, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import plain_attribute, shape_of
from ...dialects.step import BY_ROW
from .batch_order import VIEWS, hint_of
from .list_regrouping import LIST_OPS
from .new_ops import like

_ROWS = 3
"""Number of dims of lists whose elements are rows; lists of single elements have two."""


@dataclass(frozen=True)
class Twin:
    """
    The equivalent of a value in a program that sorts each row of the batch separately.

    Args:
        value: the same elements in another order, along the first dim.
        order: the sort that gives this order, or None if the order is unchanged.
        target: for elements that are places in a list, the sort whose order the list has, and the number of its
            elements per row of the batch; otherwise None.
        sorts: all sorts that the value depends on.
    """

    value: SSAValue
    order: AtenOp | None
    target: tuple[AtenOp | None, int] | None
    sorts: frozenset[AtenOp]

    @property
    def is_plain(self) -> bool:
        """Whether the elements are something other than places in a list."""
        return self.target is None


@dataclass
class TwinMaker:
    """A builder of twins, in front of the ops that they replace."""

    block: Block
    rows: int

    def __post_init__(self) -> None:
        self.made: dict[AtenOp, None] = {}
        self._known: dict[tuple[SSAValue, tuple[int, ...]], SSAValue] = {}

    def make(
        self,
        op: Operation,
        name: str,
        operands: Sequence[SSAValue],
        shapes: Sequence[Sequence[int]],
        hint: str,
        **given: object,
    ) -> AtenOp:
        """Insert a new aten op in front of another op."""
        attributes = {
            key: value if isinstance(value, Attribute) else plain_attribute(value) for key, value in given.items()
        }
        if name in LIST_OPS:
            attributes[BY_ROW] = UnitAttr()
        return self.add(like(op, name, operands, shapes, hint, **attributes), op)

    def add(self, new: AtenOp, op: Operation) -> AtenOp:
        """Insert an op in front of another op."""
        self.block.insert_op_before(new, op)
        self.made[new] = None
        return new

    def by_row(self, op: Operation, value: SSAValue) -> SSAValue:
        """Return [b * n, ...] viewed as [b, n, ...]."""
        shape = shape_of(value)
        return self.shaped(op, value, (self.rows, shape[0] // self.rows, *shape[1:]), f"{hint_of(value)}.by_row")

    def flat(self, op: Operation, value: SSAValue, hint: str) -> SSAValue:
        """Return [b, n, ...] viewed as [b * n, ...]."""
        shape = shape_of(value)
        return self.shaped(op, value, (shape[0] * shape[1], *shape[2:]), hint)

    def shaped(self, op: Operation, value: SSAValue, shape: tuple[int, ...], hint: str) -> SSAValue:
        """Return a view of a value, or of its source if the value is a view that this object inserted."""
        owner = value.owner
        if isinstance(owner, AtenOp) and owner.overload in VIEWS and owner in self.made:
            value = owner.args[0]
        if shape_of(value) == shape:
            return value
        if (value, shape) not in self._known:
            self._known[value, shape] = self.make(op, "view", [value], [shape], hint, size=shape).outs[0]
        return self._known[value, shape]

    def places(self, op: Operation, places: SSAValue, shape: Sequence[int]) -> SSAValue:
        """Return places [b * n] as an index [b, n, ...] of slices of the shape [b, ., ...]."""
        by_row = self.by_row(op, places)
        rest, hint = tuple(shape[2:]), f"{hint_of(places)}.wide"
        if not rest:
            return by_row
        sizes = (*shape_of(by_row), *rest)
        if (by_row, sizes) not in self._known:
            column = self.shaped(op, by_row, (*shape_of(by_row), *(1 for _ in rest)), f"{hint_of(places)}.column")
            self._known[by_row, sizes] = self.make(op, "expand", [column], [sizes], hint, size=sizes).outs[0]
        return self._known[by_row, sizes]


def copied(maker: TwinMaker, op: AtenOp, twins: Sequence[Twin | None]) -> AtenOp:
    """Insert a copy of the op on the twins of its operands."""
    operands = [twin.value if twin is not None else value for value, twin in zip(op.args, twins, strict=True)]
    new = type(op)(
        operands=[operands], result_types=[[value.type for value in op.outs]], attributes=dict(op.attributes)
    )
    new.location = op.location
    for old, result in zip(op.outs, new.outs, strict=True):
        result.name_hint = old.name_hint
    return maker.add(new, op)


def sorted_apart(maker: TwinMaker, op: AtenOp, value: SSAValue) -> list[Twin]:
    """
    Insert a sort within each row of the batch, and return the twins of the sort's results: sorted values and places.
    """
    by_row = maker.by_row(op, value)
    shape = shape_of(by_row)
    arguments = {name: value for name, value in op.attributes.items() if "." not in name} | {"dim": plain_attribute(1)}
    hint = hint_of(op.outs[0])
    new = maker.make(op, op.overload, [by_row], [shape] * len(op.outs), f"{hint}.by_row", **arguments)
    new.outs[-1].name_hint = f"{hint}.places.by_row"
    names = (hint, f"{hint}.places")[-len(op.outs) :]
    flat = [maker.flat(op, result, name) for result, name in zip(new.outs, names, strict=True)]
    sorts = frozenset({op})
    places = Twin(flat[-1], op, (None, shape[1]), sorts)
    return [places] if len(flat) == 1 else [Twin(flat[0], op, None, sorts), places]


def inverse_of(maker: TwinMaker, op: AtenOp, places: Twin) -> Twin:
    """Return the sorted position of each element, computed from the original place of each sorted element."""
    assert places.order is not None
    n = shape_of(places.value)[0] // maker.rows
    sorted_places = sorted_apart(maker, op, places.value)[-1]
    return replace(sorted_places, order=None, target=(places.order, n), sorts=places.sorts)


def picked(maker: TwinMaker, op: AtenOp, source: Twin, places: Twin) -> Twin:
    """Return x[places], where each row of the batch reads from its own part of x."""
    by_row = maker.by_row(op, source.value)
    shape, hint = shape_of(by_row), hint_of(op.outs[0])
    if len(shape) == _ROWS:
        index = maker.by_row(op, places.value)
        sizes = (*shape_of(index), shape[2])
        taken = maker.make(op, "take_rows", [by_row, index], [sizes], f"{hint}.by_row").outs[0]
    else:
        index = maker.places(op, places.value, shape)
        taken = maker.make(op, "gather", [by_row, index], [shape_of(index)], f"{hint}.by_row", dim=1).outs[0]
    return Twin(maker.flat(op, taken, hint), places.order, source.target, source.sorts | places.sorts)


def put(maker: TwinMaker, op: AtenOp, into: SSAValue, places: Twin, values: Twin, *, adds: bool) -> Twin:
    """Return a tensor of one number into which values are put, or added, at places in each row's own part."""
    assert places.target is not None
    by_row, hint = maker.by_row(op, values.value), f"{hint_of(op.outs[0])}.by_row"
    if adds and len(shape_of(by_row)) == _ROWS and _is_zero(into):
        index, size = maker.by_row(op, places.value), shape_of(into)[0] // maker.rows
        sizes = (maker.rows, size, shape_of(into)[1])
        result = maker.make(op, "add_rows", [by_row, index], [sizes], hint, size=size).outs[0]
    else:
        blank, index = maker.by_row(op, into), maker.places(op, places.value, shape_of(by_row))
        name = "scatter_add" if adds else "scatter.src"
        result = maker.make(op, name, [blank, index, by_row], [shape_of(blank)], hint, dim=1).outs[0]
    hint = hint_of(op.outs[0])
    return Twin(maker.flat(op, result, hint), places.target[0], values.target, places.sorts | values.sorts)


def _is_zero(value: SSAValue) -> bool:
    op = value.owner
    if not isinstance(op, AtenOp):
        return False
    return op.overload in ("zeros", "zeros_like", "new_zeros") or op.arguments().get("fill_value") == 0


def divided(maker: TwinMaker, op: AtenOp, places: Twin, by: int) -> Twin:
    """Return the places of groups of `by` consecutive list elements, given places of the elements."""
    assert places.target is not None
    order, n = places.target
    if by == 1:
        return places
    shape, hint = shape_of(places.value), hint_of(op.outs[0])
    quotient = maker.make(op, "floor_divide", [places.value], [shape], hint, other=by).outs[0]
    return Twin(quotient, places.order, (order, n // by), places.sorts)


def counting(maker: TwinMaker, op: AtenOp, order: AtenOp, length: int) -> Twin:
    """Return the places 0, 1, 2, ... in a list in the order of a sort, counted within each row of the batch."""
    n = length // maker.rows
    numbers = maker.make(op, "arange", [], [(length,)], "places", end=length).outs[0]
    places = maker.make(op, "remainder.Scalar", [numbers], [(length,)], "places", other=n).outs[0]
    return Twin(places, order, (order, n), frozenset({order}))


def ends_of(maker: TwinMaker, op: AtenOp, keys: SSAValue, groups: int) -> SSAValue:
    """Return where each group ends among the sorted keys of each row of the batch, [b, groups]."""
    sizes, n = (maker.rows, groups), shape_of(keys)[0] // maker.rows
    group = maker.make(op, "arange", [], [(groups,)], "groups", end=groups, dtype=i64).outs[0]
    column = maker.shaped(op, keys, (maker.rows, n, 1), "keys.column")
    in_group = maker.make(op, "eq.Tensor", [column, group], [(maker.rows, n, groups)], "in_group").outs[0]
    numbers = maker.make(op, "sum.dim_IntList", [in_group], [sizes], "numbers.by_row", dim=[1]).outs[0]
    return maker.make(op, "cumsum", [numbers], [sizes], "ends.by_row", dim=1).outs[0]


def grouped(maker: TwinMaker, op: AtenOp, twins: Sequence[Twin], ends: SSAValue) -> list[SSAValue]:
    """Return the results of a grouped product on lists by row, with the lists of all rows joined."""
    by_row = [maker.by_row(op, twin.value) for twin in twins]
    operands = [by_row[0], op.args[1], ends, *by_row[1:]]
    shapes = [shape_of(value) for value in op.outs]
    lists = (maker.rows, shapes[0][0] // maker.rows, *shapes[0][1:])
    name = op.overload.replace("grouped_mm", "grouped_bmm")
    hint = hint_of(op.outs[0])
    new = maker.make(op, name, operands, [lists, *shapes[1:]], f"{hint}.by_row")
    for old, result in zip(op.outs[1:], new.outs[1:], strict=True):
        result.name_hint = old.name_hint
    return [maker.flat(op, new.outs[0], hint), *new.outs[1:]]
