"""
The ops that `sort-within-rows` creates to work on lists of rows of the batch, each list separately.

A list op takes values ``[b, n, ...]``, with n elements for each of b rows of the batch, or counts ``[b, groups]``. With
d lists instead of b, the shapes are ``[d, b / d * n, ...]`` and ``[d, groups]``: `sort-across-rows` creates these, and
`strip-resharding` undoes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import SIGNATURE, plain_attribute, shape_of
from ...dialects.mesh_ops import find_mesh
from ...dialects.pipe import STAGE
from ...dialects.placed import element_of
from ...dialects.ratios import SEGMENT
from ...dialects.sharding_attrs import SignatureAttr
from ...dialects.step import BY_ROW
from ...ir.mesh import Mesh
from ...ir.sharding import DimSharding, Sharding
from ...ir.signatures import Signature
from .batch_order import VIEWS, hint_of
from .new_ops import like


@dataclass(frozen=True)
class ListOp:
    """
    The operands, results and arguments of a list op that depend on the number of lists.

    Args:
        operands, results: indices of the operands and results that are lists or counts.
        counts: whether the results are counts.
        taken: indices of the operands that are counts.
        length: name of the argument that is a number of elements of a list.
        size: name of the argument that is the shape of the result.
    """

    operands: tuple[int, ...] = (0,)
    results: tuple[int, ...] = (0,)
    counts: bool = False
    taken: tuple[int, ...] = ()
    length: str = ""
    size: str = ""


LIST_OPS: Mapping[str, ListOp] = {
    "sort": ListOp(results=(0, 1)),
    "sort.stable": ListOp(results=(0, 1)),
    "argsort": ListOp(),
    "remainder.Scalar": ListOp((), (), length="other"),
    "take_rows": ListOp((0, 1)),
    "add_rows": ListOp((0, 1), length="size"),
    "gather": ListOp((0, 1)),
    "scatter.src": ListOp((0, 1, 2)),
    "scatter_add": ListOp((0, 1, 2)),
    "expand": ListOp(size="size"),
    "eq.Tensor": ListOp(),
    "sum.dim_IntList": ListOp(counts=True),
    "cumsum": ListOp(counts=True, taken=(0,)),
    "grouped_bmm": ListOp((0, 2), taken=(2,)),
    "grouped_bmm_backward": ListOp((0, 2, 3), taken=(2,)),
}
"""The list ops by overload; `sort-within-rows` marks each list op that it creates with the attribute `train.by_row`."""


def list_ops_of(func: FuncOp) -> list[AtenOp]:
    """Return the list ops of a step, in program order."""
    return [op for op in func.body.block.ops if isinstance(op, AtenOp) and is_list_op(op)]


def count_of(listed: Sequence[AtenOp]) -> int | None:
    """Return the number of lists, or None if ops differ in it or if other ops produce or use the counts."""
    sizes = {shape_of(value)[0] for op in listed for value in _lists(op)}
    return sizes.pop() if len(sizes) == 1 and all(map(_keeps_counts, listed)) else None


def is_view(op: object) -> bool:
    """Return whether an op gives the same elements under another shape."""
    return isinstance(op, AtenOp) and op.overload in VIEWS


def is_list_op(op: object) -> bool:
    """Return whether an op was created for lists of rows of the batch."""
    return isinstance(op, AtenOp) and BY_ROW in op.attributes


def regroup(func: FuncOp, lists: int) -> None:
    """Change the number of lists of a step to `lists`, a multiple or divisor of the present number; signatures stay."""
    listed = list_ops_of(func)
    count = count_of(listed)
    if count is not None and count != lists and max(count, lists) % min(count, lists) == 0:
        _ListRegrouping(func, count, lists).run(listed)


def _lists(op: AtenOp) -> list[SSAValue]:
    listed = LIST_OPS[op.overload]
    return [*(op.args[i] for i in listed.operands), *(op.outs[i] for i in listed.results)]


def _keeps_counts(op: AtenOp) -> bool:
    """Return whether all counts that an op takes or gives are produced and used by list ops."""
    listed = LIST_OPS[op.overload]
    taken = [op.args[i].owner for i in listed.taken]
    users = [use.operation for value in op.outs for use in value.uses] if listed.counts else []
    return all(is_list_op(neighbour) for neighbour in (*taken, *users))


class _ListRegrouping:
    """A replacement of list ops on `count` lists by ops on `lists` lists; used once."""

    def __init__(self, func: FuncOp, count: int, lists: int) -> None:
        self.block, self.count, self.lists = func.body.block, count, lists
        self.joined: dict[SSAValue, SSAValue] = {}
        """The new lists and counts by the results that they replace."""
        self.made: set[SSAValue] = set()
        """The new lists and counts."""
        self.views: dict[SSAValue, SSAValue] = {}
        self.replaced: list[Operation] = []

    def run(self, listed: Sequence[AtenOp]) -> None:
        """Replace the list ops in program order, and erase the old ops and views that lose all uses."""
        for op in listed:
            self._regroup(op)
        for op in reversed(self.replaced):
            if all(result.first_use is None for result in op.results):
                op.detach()
                op.erase()

    def _regroup(self, op: AtenOp) -> None:
        listed = LIST_OPS[op.overload]
        operands = list(op.args)
        for i in listed.operands:
            operands[i] = self._operand(op, i)
        types = [value.type for value in op.outs]
        for i in listed.results:
            types[i] = TensorType(element_of(op.outs[i]), self._shape(op.outs[i], counts=listed.counts))
        new = type(op)(operands=[operands], result_types=[types], attributes=self._attributes(op, listed, types))
        new.location = op.location
        self.block.insert_op_before(new, op)
        self.replaced.append(op)
        for i, (old, result) in enumerate(zip(op.outs, new.outs, strict=True)):
            result.name_hint = old.name_hint
            if i not in listed.results:
                old.replace_all_uses_with(result)
                continue
            self.joined[old] = result
            self.made.add(result)
            self._give(op, i, result)

    def _attributes(self, op: AtenOp, listed: ListOp, types: Sequence[Attribute]) -> dict[str, Attribute]:
        attributes = dict(op.attributes)
        if listed.length:
            length = op.arguments()[listed.length]
            assert isinstance(length, int)
            attributes[listed.length] = plain_attribute(length * self.count // self.lists)
        if listed.size:
            assert isinstance(types[0], TensorType)
            attributes[listed.size] = plain_attribute(types[0].get_shape())
        if (signed := self._signed(op, signature_of(op), listed.operands, listed.results)) is not None:
            attributes[SIGNATURE] = signed
        return attributes

    def _signed(
        self,
        op: Operation,
        given: SignatureAttr | None,
        operands: Collection[int] = (),
        results: Collection[int] = (),
    ) -> SignatureAttr | None:
        """Return a signature whose operands and results with these indices are lists, or None without a signature."""
        if given is None:
            return None
        sides = (given.signature.operands, operands), (given.signature.results, results)
        mesh = find_mesh(op, given.data.mesh)
        news = (tuple(self._spread(mesh, spread, i in lists) for i, spread in enumerate(side)) for side, lists in sides)
        return SignatureAttr.of(given.data.mesh, Signature(*news))

    def _spread(self, mesh: Mesh, spread: Sharding, is_list: bool) -> Sharding:
        """Return a sharding, with an even split of the first dim of a list, and a single list on no axis of size 1."""
        if is_list:
            spread = replace(spread, dims=(DimSharding(spread.dims[0].axes), *spread.dims[1:]))
        if self.lists > 1:
            return spread
        single = {axis.name for axis in mesh.axes if axis.size == 1}
        several = ((tuple(axis for axis in dim.axes if axis not in single), dim.offsets) for dim in spread.dims)
        dims = (DimSharding(axes, offsets if axes else None) for axes, offsets in several)
        return Sharding(tuple(dims), tuple(pair for pair in spread.partial if pair[0] not in single))

    def _shape(self, value: SSAValue, *, counts: bool = False) -> Sequence[int]:
        _, length, *rest = shape_of(value)
        return (self.lists, length if counts else length * self.count // self.lists, *rest)

    def _operand(self, op: AtenOp, index: int) -> SSAValue:
        """Return the new operand of a list op: the new list, or a view of the old operand or of its source."""
        value = op.args[index]
        if value in self.joined:
            return self.joined[value]
        if value not in self.views:
            producer = value.owner
            if isinstance(producer, AtenOp) and is_view(producer):
                self.replaced.append(producer)
                source = self.joined.get(producer.args[0], producer.args[0])
                old = signature_of(producer)
            else:
                source, old = value, _of_view(op, lambda signature: signature.operands[index])
            signed = self._signed(op, old, (0,) if source in self.made else (), (0,))
            hint = hint_of(value).removesuffix(".by_row") + ".by_part"
            self.views[value] = self._view(op, source, self._shape(value), signed, hint)
        return self.views[value]

    def _give(self, op: AtenOp, index: int, made: SSAValue) -> None:
        """Replace a result, in ops other than list ops, by views of the new list in the shape that they expect."""
        old = op.outs[index]
        users = [use for use in old.uses if not is_list_op(use.operation)]
        rows: SSAValue | None = None
        for use in users:
            user = use.operation
            if is_view(user):
                user.operands[0] = made
                if (signed := self._signed(user, signature_of(user), (0,))) is not None:
                    user.attributes[SIGNATURE] = signed
                continue
            if rows is None:
                signed = self._signed(op, _of_view(op, lambda signature: signature.results[index]), (0,))
                rows = self._view(op, made, shape_of(old), signed, f"{hint_of(old)}.by_row")
            user.operands[use.index] = rows

    def _view(
        self, op: Operation, source: SSAValue, shape: Sequence[int], signed: SignatureAttr | None, hint: str
    ) -> SSAValue:
        """Insert a view in front of an op, with its phase and stage, and return the result."""
        attributes = {name: op.attributes[name] for name in (STAGE, SEGMENT) if name in op.attributes}
        attributes |= {SIGNATURE: signed} if signed is not None else {}
        new = like(op, "view", [source], [shape], hint, size=plain_attribute(shape), **attributes)
        self.block.insert_op_before(new, op)
        return new.outs[0]


def signature_of(op: Operation) -> SignatureAttr | None:
    """Return the signature of an op, with its mesh."""
    attribute = op.attributes.get(SIGNATURE)
    return attribute if isinstance(attribute, SignatureAttr) else None


def _of_view(op: Operation, spread_of: Callable[[Signature], Sharding]) -> SignatureAttr | None:
    """Return the signature of a view of an operand or result of an op that keeps the op's sharding of that value."""
    if (signed := signature_of(op)) is None:
        return None
    spread = spread_of(signed.signature)
    return SignatureAttr.of(signed.data.mesh, Signature((spread,), (spread,)))
