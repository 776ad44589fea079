"""The pass `sort-across-rows`."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass

from ..dialects.aten import AtenOp
from ..dialects.compute import SIGNATURE, plain_attribute, shape_of
from ..dialects.mesh_ops import MeshOp
from ..dialects.pipe import STAGE
from ..dialects.placed import element_of
from ..dialects.ratios import SEGMENT
from ..dialects.sharding_attrs import ShardingAttr, SignatureAttr
from ..dialects.step import BY_ROW, WORKING, attribute_of
from ..ir.mesh import Mesh
from ..ir.sharding import DimSharding, Sharding, even_offsets
from ..ir.signatures import Signature
from .errors import fail
from .step.batch_order import VIEWS, hint_of
from .step.list_ops import LIST_OPS, ListOp
from .step.new_ops import like
from .step.requirements import require_no_resharding
from .step.step_view import step_functions


@dataclass(frozen=True)
class SortAcrossRowsPass(ModulePass):
    """
    Let the rows of the batch that are on a device at one time sort their elements together again.

    For `sort-within-rows` each row of the batch has a list of its own, which any strategy may divide. Once it is known
    into how many parts, over devices and over time, the batch is divided, one list for each part will do: the sort that
    the model has, where nothing is divided. A device then has the tokens of an expert in one place, and grouped
    products need not join lists.

    Where rows are shared unevenly, or the elements of a row are divided, each row keeps its own.

    Requires: signatures (`search-strategy`), and the axis of the parts where the batch is split (`split-batch`).
    Ensures: what the step computes is the same but for the order in which sums are taken; signatures stay.

    Before:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%keys: tensor<8x6xi64> {train.batch = "0"}) -> tensor<48xi64> {
      %sorted, %places = aten.sort %keys {dim = 1 : i64, train.by_row,
        spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}], [{"gpu"}, {}])>}
        : (tensor<8x6xi64>) -> (tensor<8x6xi64>, tensor<8x6xi64>)
      %list = aten.view %sorted {size = [48 : i64], spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}])>}
        : (tensor<8x6xi64>) -> tensor<48xi64>
      func.return %list : tensor<48xi64>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%keys: tensor<8x6xi64> {train.batch = "0"}) -> tensor<48xi64> {
      %keys.by_part = aten.view %keys {size = [2 : i64, 24 : i64],
        spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}])>}
        : (tensor<8x6xi64>) -> tensor<2x24xi64>
      %sorted, %places = aten.sort %keys.by_part {dim = 1 : i64, train.by_row,
        spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}, {}], [{"gpu"}, {}])>}
        : (tensor<2x24xi64>) -> (tensor<2x24xi64>, tensor<2x24xi64>)
      %list = aten.view %sorted {size = [48 : i64], spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{"gpu"}])>}
        : (tensor<2x24xi64>) -> tensor<48xi64>
      func.return %list : tensor<48xi64>
    }
    ```

    Source: dropless mixtures: Gale et al., MegaBlocks (2022), 4, where a device sorts the tokens that it has.
    """

    name = "sort-across-rows"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Join the lists of every step function of the module."""
        meshes = {each.sym_name.data: each.mesh for each in op.ops if isinstance(each, MeshOp)}
        for func in step_functions(op):
            listed = [each for each in func.body.block.ops if _is_list_op(each)]
            if not listed:
                continue
            require_no_resharding(func, self.name)
            sizes = {shape_of(value)[0] for each in listed for value in _lists(each)}
            if len(sizes) != 1 or not all(map(_keeps_counts, listed)):
                continue
            (rows,) = sizes
            lists = _parts(listed, meshes, rows)
            if lists is not None and lists < rows:
                _Joiner(func, meshes, rows, lists).run(listed)


def _is_list_op(op: Operation) -> bool:
    return isinstance(op, AtenOp) and BY_ROW in op.attributes


def _lists(op: Operation) -> Iterator[SSAValue]:
    """The operands and results of a list op that are lists or counts."""
    if isinstance(op, AtenOp):
        listed = LIST_OPS[op.overload]
        yield from (*(op.args[i] for i in listed.operands), *(op.outs[i] for i in listed.results))


def _keeps_counts(op: Operation) -> bool:
    """Whether list ops alone make the counts that an op takes, and take those that it makes."""
    assert isinstance(op, AtenOp)
    listed = LIST_OPS[op.overload]
    taken = [op.args[i].owner for i in listed.taken]
    users = [use.operation for value in op.outs for use in value.uses] if listed.counts else []
    return all(isinstance(each, Operation) and _is_list_op(each) for each in (*taken, *users))


def _parts(listed: Sequence[Operation], meshes: Mapping[str, Mesh], rows: int) -> int | None:
    """
    The least number of lists that all shardings of lists divide; None where rows of the batch have to keep theirs.
    """
    found = 1
    for op in listed:
        for mesh, spread in _spreads(op):
            first, second = spread.dims[0], spread.dims[1]
            parts = meshes[mesh].parts(first.axes)
            is_even = first.offsets is None or first.offsets == even_offsets(rows, parts)
            if second.axes or not is_even or rows % parts:
                return None
            found = math.lcm(found, parts)
    return found if rows % found == 0 else None


def _spreads(op: Operation) -> Iterator[tuple[str, Sharding]]:
    """The shardings of what a list op has to do with that are lists: its own, working copies, views."""
    if not isinstance(op, AtenOp):
        return
    listed = LIST_OPS[op.overload]
    name, given = _signature(op)
    yield from ((name, given.operands[i]) for i in listed.operands)
    yield from ((name, given.results[i]) for i in listed.results)
    for i in listed.results:
        if isinstance(copy := attribute_of(op.outs[i], WORKING), ShardingAttr):
            yield copy.data.mesh, copy.sharding
        for use in op.outs[i].uses:
            if _is_view(use.operation):
                other, signature = _signature(use.operation)
                yield other, signature.operands[0]
    for i in listed.operands:
        if _is_view(made := op.args[i].owner):
            other, signature = _signature(made)
            yield other, signature.results[0]


def _is_view(op: object) -> bool:
    return isinstance(op, AtenOp) and op.overload in VIEWS


def _signature(op: object) -> tuple[str, Signature]:
    assert isinstance(op, Operation)
    given = op.attributes.get(SIGNATURE)
    if not isinstance(given, SignatureAttr):
        fail(op, "has no signature; run search-strategy before sort-across-rows")
    return given.data.mesh, given.signature


class _Joiner:
    """Makes ops on `lists` lists in the place of those on a list for each of `rows` rows of the batch."""

    def __init__(self, func: FuncOp, meshes: Mapping[str, Mesh], rows: int, lists: int) -> None:
        self.block, self.meshes, self.rows, self.lists = func.body.block, meshes, rows, lists
        self.joined: dict[SSAValue, SSAValue] = {}
        """By result of an op on rows of the batch, that on lists."""
        self.made: set[SSAValue] = set()
        """The lists."""
        self.views: dict[SSAValue, SSAValue] = {}
        self.replaced: list[Operation] = []

    def run(self, listed: Sequence[Operation]) -> None:
        """Replace the list ops, in their order, and what has no use then."""
        for op in listed:
            assert isinstance(op, AtenOp)
            self._join(op)
        for op in reversed(self.replaced):
            if all(result.first_use is None for result in op.results):
                op.detach()
                op.erase()

    def _join(self, op: AtenOp) -> None:
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
        for i, (old, made) in enumerate(zip(op.outs, new.outs, strict=True)):
            made.name_hint = old.name_hint
            if i not in listed.results:
                old.replace_all_uses_with(made)
                continue
            self.joined[old] = made
            self.made.add(made)
            self._give(op, i, made)

    def _attributes(self, op: AtenOp, listed: ListOp, types: Sequence[Attribute]) -> dict[str, Attribute]:
        """Those of an op, on lists."""
        found = dict(op.attributes)
        if listed.length:
            length = op.arguments()[listed.length]
            assert isinstance(length, int)
            found[listed.length] = plain_attribute(length * self.rows // self.lists)
        if listed.size:
            assert isinstance(types[0], TensorType)
            found[listed.size] = plain_attribute(types[0].get_shape())
        name, given = _signature(op)
        found[SIGNATURE] = self._signed(name, given, listed.operands, listed.results)
        return found

    def _signed(
        self, name: str, given: Signature, operands: Collection[int] = (), results: Collection[int] = ()
    ) -> SignatureAttr:
        """A signature of which some operands and results are lists now."""
        sides = (given.operands, operands), (given.results, results)
        made = (tuple(self._spread(name, spread, i in lists) for i, spread in enumerate(side)) for side, lists in sides)
        return SignatureAttr.of(name, Signature(*made))

    def _spread(self, name: str, spread: Sharding, is_list: bool) -> Sharding:
        """A sharding, whose first dim is split evenly if it is of lists; a single list is on no axis of size 1."""
        if is_list:
            spread = replace(spread, dims=(DimSharding(spread.dims[0].axes), *spread.dims[1:]))
        if self.lists > 1:
            return spread
        single = {axis.name for axis in self.meshes[name].axes if axis.size == 1}
        kept = ((tuple(axis for axis in dim.axes if axis not in single), dim.offsets) for dim in spread.dims)
        dims = (DimSharding(axes, offsets if axes else None) for axes, offsets in kept)
        return Sharding(tuple(dims), tuple(pair for pair in spread.partial if pair[0] not in single))

    def _shape(self, value: SSAValue, *, counts: bool = False) -> Sequence[int]:
        """That of a list, or of counts, where there are fewer."""
        _, length, *rest = shape_of(value)
        return (self.lists, length if counts else length * self.rows // self.lists, *rest)

    def _operand(self, op: AtenOp, index: int) -> SSAValue:
        """What an operand of a list op becomes: a view of what it was made of, or of itself."""
        value = op.args[index]
        if value in self.joined:
            return self.joined[value]
        if value not in self.views:
            made = value.owner
            if isinstance(made, AtenOp) and _is_view(made):
                self.replaced.append(made)
                source = self.joined.get(made.args[0], made.args[0])
                name, given = _signature(made)
            else:
                source, (name, given) = value, _signature(op)
                given = Signature((given.operands[index],), (given.operands[index],))
            signed = self._signed(name, given, (0,) if source in self.made else (), (0,))
            hint = hint_of(value).removesuffix(".by_row") + ".by_part"
            self.views[value] = self._view(op, source, self._shape(value), signed, hint)
        return self.views[value]

    def _give(self, op: AtenOp, index: int, made: SSAValue) -> None:
        """Let the other users of a result take a list in its place, under the shape that they want."""
        old = op.outs[index]
        users = [use for use in old.uses if not _is_list_op(use.operation)]
        rows: SSAValue | None = None
        for use in users:
            user = use.operation
            if isinstance(user, AtenOp) and _is_view(user):
                user.operands[0] = made
                user.attributes[SIGNATURE] = self._signed(*_signature(user), (0,))
                continue
            if rows is None:
                name, given = _signature(op)
                signed = self._signed(name, Signature((given.results[index],), (given.results[index],)), (0,))
                rows = self._view(op, made, shape_of(old), signed, f"{hint_of(old)}.by_row")
            user.operands[use.index] = rows

    def _view(
        self, op: Operation, source: SSAValue, shape: Sequence[int], signed: SignatureAttr, hint: str
    ) -> SSAValue:
        """A view in front of an op, of its phase and stage."""
        kind = TensorType(element_of(source), shape)
        kept = {name: op.attributes[name] for name in (STAGE, SEGMENT) if name in op.attributes}
        given = {"size": plain_attribute(shape), SIGNATURE: signed, **kept}
        new = like(op, "view", [source], [kind], hint, **given)
        self.block.insert_op_before(new, op)
        return new.outs[0]
