"""
Rows that are sorted across the batch, and the same sorted within each row of the batch: for `sort-within-rows`.

A step with a batch of b rows has lists of b x n elements (tokens, or choices of tokens), of which n belong to each row
of the batch. Where such a list is sorted and what comes after is alike for every element, or sums over all, it makes no
difference if each row of the batch sorts its own n instead: the elements come in another order. A *twin* of a value is
what it becomes then: as large, with its elements in that other order; places within the list count from where their row
of the batch begins.
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
"""How many dims lists of rows have; those of single elements have two."""


@dataclass(frozen=True)
class Twin:
    """
    A value as it is where rows of the batch sort for themselves.

    Args:
        value: the same elements in another order, along the first dim.
        order: the sort whose order that is; None for their own.
        target: of elements that are places in a list, the sort in whose order the list is, and how many of it belong to
            a row of the batch; None for other elements.
        sorts: all sorts that it depends on.
    """

    value: SSAValue
    order: AtenOp | None
    target: tuple[AtenOp | None, int] | None
    sorts: frozenset[AtenOp]

    @property
    def is_plain(self) -> bool:
        """Whether its elements are no places."""
        return self.target is None


@dataclass
class TwinMaker:
    """Makes ops in front of those that they are the twins of."""

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
        """An op in front of another."""
        attributes = {
            key: value if isinstance(value, Attribute) else plain_attribute(value) for key, value in given.items()
        }
        if name in LIST_OPS:
            attributes[BY_ROW] = UnitAttr()
        return self.add(like(op, name, operands, shapes, hint, **attributes), op)

    def add(self, new: AtenOp, op: Operation) -> AtenOp:
        """Put an op in front of another."""
        self.block.insert_op_before(new, op)
        self.made[new] = None
        return new

    def by_row(self, op: Operation, value: SSAValue) -> SSAValue:
        """[b * n, ...] as [b, n, ...]."""
        shape = shape_of(value)
        return self.shaped(op, value, (self.rows, shape[0] // self.rows, *shape[1:]), f"{hint_of(value)}.by_row")

    def flat(self, op: Operation, value: SSAValue, hint: str) -> SSAValue:
        """[b, n, ...] as [b * n, ...]."""
        shape = shape_of(value)
        return self.shaped(op, value, (shape[0] * shape[1], *shape[2:]), hint)

    def shaped(self, op: Operation, value: SSAValue, shape: tuple[int, ...], hint: str) -> SSAValue:
        """A view; of a view that was made here, one of its source."""
        owner = value.owner
        if isinstance(owner, AtenOp) and owner.overload in VIEWS and owner in self.made:
            value = owner.args[0]
        if shape_of(value) == shape:
            return value
        if (value, shape) not in self._known:
            self._known[value, shape] = self.make(op, "view", [value], [shape], hint, size=shape).outs[0]
        return self._known[value, shape]

    def places(self, op: Operation, places: SSAValue, shape: Sequence[int]) -> SSAValue:
        """Places [b * n] as an index [b, n, ...] of slices of the shape [b, ., ...]."""
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
    """The op itself on twins of its operands."""
    operands = [twin.value if twin is not None else value for value, twin in zip(op.args, twins, strict=True)]
    new = type(op)(
        operands=[operands], result_types=[[value.type for value in op.outs]], attributes=dict(op.attributes)
    )
    new.location = op.location
    for old, made in zip(op.outs, new.outs, strict=True):
        made.name_hint = old.name_hint
    return maker.add(new, op)


def sorted_apart(maker: TwinMaker, op: AtenOp, value: SSAValue) -> list[Twin]:
    """The twins of what a sort gives: what is sorted, and where it was."""
    by_row = maker.by_row(op, value)
    shape = shape_of(by_row)
    given = {name: each for name, each in op.attributes.items() if "." not in name} | {"dim": plain_attribute(1)}
    hint = hint_of(op.outs[0])
    new = maker.make(op, op.overload, [by_row], [shape] * len(op.outs), f"{hint}.by_row", **given)
    new.outs[-1].name_hint = f"{hint}.places.by_row"
    names = (hint, f"{hint}.places")[-len(op.outs) :]
    flat = [maker.flat(op, each, name) for each, name in zip(new.outs, names, strict=True)]
    sorts = frozenset({op})
    places = Twin(flat[-1], op, (None, shape[1]), sorts)
    return [places] if len(flat) == 1 else [Twin(flat[0], op, None, sorts), places]


def inverse_of(maker: TwinMaker, op: AtenOp, places: Twin) -> Twin:
    """Where each element went in a sort, from where each that is sorted was."""
    assert places.order is not None
    n = shape_of(places.value)[0] // maker.rows
    sorted_places = sorted_apart(maker, op, places.value)[-1]
    return replace(sorted_places, order=None, target=(places.order, n), sorts=places.sorts)


def picked(maker: TwinMaker, op: AtenOp, source: Twin, places: Twin) -> Twin:
    """x[places], each row of the batch from its own part of x."""
    by_row = maker.by_row(op, source.value)
    shape, hint = shape_of(by_row), hint_of(op.outs[0])
    if len(shape) == _ROWS:
        index = maker.by_row(op, places.value)
        sizes = (*shape_of(index), shape[2])
        found = maker.make(op, "take_rows", [by_row, index], [sizes], f"{hint}.by_row").outs[0]
    else:
        index = maker.places(op, places.value, shape)
        found = maker.make(op, "gather", [by_row, index], [shape_of(index)], f"{hint}.by_row", dim=1).outs[0]
    return Twin(maker.flat(op, found, hint), places.order, source.target, source.sorts | places.sorts)


def put(maker: TwinMaker, op: AtenOp, into: SSAValue, places: Twin, values: Twin, *, adds: bool) -> Twin:
    """A tensor of one number in which values are put at places, or added, each row's into its own part."""
    assert places.target is not None
    by_row, hint = maker.by_row(op, values.value), f"{hint_of(op.outs[0])}.by_row"
    if adds and len(shape_of(by_row)) == _ROWS and _is_zero(into):
        index, size = maker.by_row(op, places.value), shape_of(into)[0] // maker.rows
        sizes = (maker.rows, size, shape_of(into)[1])
        found = maker.make(op, "add_rows", [by_row, index], [sizes], hint, size=size).outs[0]
    else:
        blank, index = maker.by_row(op, into), maker.places(op, places.value, shape_of(by_row))
        name = "scatter_add" if adds else "scatter.src"
        found = maker.make(op, name, [blank, index, by_row], [shape_of(blank)], hint, dim=1).outs[0]
    hint = hint_of(op.outs[0])
    return Twin(maker.flat(op, found, hint), places.target[0], values.target, places.sorts | values.sorts)


def _is_zero(value: SSAValue) -> bool:
    """Whether a tensor is made of zeros."""
    op = value.owner
    if not isinstance(op, AtenOp):
        return False
    return op.overload in ("zeros", "zeros_like", "new_zeros") or op.arguments().get("fill_value") == 0


def divided(maker: TwinMaker, op: AtenOp, places: Twin, by: int) -> Twin:
    """The places of what `by` elements of a list stand for, one after the other."""
    assert places.target is not None
    order, n = places.target
    if by == 1:
        return places
    shape, hint = shape_of(places.value), hint_of(op.outs[0])
    found = maker.make(op, "floor_divide", [places.value], [shape], hint, other=by).outs[0]
    return Twin(found, places.order, (order, n // by), places.sorts)


def counting(maker: TwinMaker, op: AtenOp, order: AtenOp, length: int) -> Twin:
    """0, 1, 2, ... of a list in the order of a sort: the places in it."""
    n = length // maker.rows
    each = maker.make(op, "arange", [], [(length,)], "places", end=length).outs[0]
    found = maker.make(op, "remainder.Scalar", [each], [(length,)], "places", other=n).outs[0]
    return Twin(found, order, (order, n), frozenset({order}))


def ends_of(maker: TwinMaker, op: AtenOp, keys: SSAValue, groups: int) -> SSAValue:
    """Where each group ends among the sorted keys of each row of the batch, [b, groups]."""
    sizes, n = (maker.rows, groups), shape_of(keys)[0] // maker.rows
    each = maker.make(op, "arange", [], [(groups,)], "groups", end=groups, dtype=i64).outs[0]
    column = maker.shaped(op, keys, (maker.rows, n, 1), "keys.column")
    alike = maker.make(op, "eq.Tensor", [column, each], [(maker.rows, n, groups)], "in_group").outs[0]
    numbers = maker.make(op, "sum.dim_IntList", [alike], [sizes], "numbers.by_row", dim=[1]).outs[0]
    return maker.make(op, "cumsum", [numbers], [sizes], "ends.by_row", dim=1).outs[0]


def grouped(maker: TwinMaker, op: AtenOp, twins: Sequence[Twin], ends: SSAValue) -> list[SSAValue]:
    """What grouped products give of lists by row, the rows' results as one list."""
    by_row = [maker.by_row(op, twin.value) for twin in twins]
    operands = [by_row[0], op.args[1], ends, *by_row[1:]]
    shapes = [shape_of(value) for value in op.outs]
    lists = (maker.rows, shapes[0][0] // maker.rows, *shapes[0][1:])
    name = op.overload.replace("grouped_mm", "grouped_bmm")
    hint = hint_of(op.outs[0])
    new = maker.make(op, name, operands, [lists, *shapes[1:]], f"{hint}.by_row")
    for old, made in zip(op.outs[1:], new.outs[1:], strict=True):
        made.name_hint = old.name_hint
    return [maker.flat(op, new.outs[0], hint), *new.outs[1:]]
