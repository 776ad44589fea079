"""The pass `sort-across-rows`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, OpResult, SSAValue
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
                _Joiner(func, rows, lists).run(listed)


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
    made = op.outs if LIST_OPS[op.overload].counts else []
    taken = [op.args[i] for i in LIST_OPS[op.overload].taken]
    users = (use.operation for value in made for use in value.uses)
    return all(map(_is_list_op, users)) and all(
        isinstance(value, OpResult) and _is_list_op(value.op) for value in taken
    )


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

    def __init__(self, func: FuncOp, rows: int, lists: int) -> None:
        self.block, self.rows, self.lists = func.body.block, rows, lists
        self.joined: dict[SSAValue, SSAValue] = {}
        """By result of an op on rows of the batch, that on lists."""
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
            types[i] = self._type(op.outs[i], counts=listed.counts)
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
        operands, results = list(given.operands), list(given.results)
        for spreads, indices in ((operands, listed.operands), (results, listed.results)):
            for i in indices:
                spreads[i] = _even(spreads[i])
        found[SIGNATURE] = SignatureAttr.of(name, Signature(tuple(operands), tuple(results)))
        return found

    def _type(self, value: SSAValue, *, counts: bool) -> TensorType[Attribute]:
        """That of a list, or of counts, where there are fewer."""
        _, *rest = shape_of(value)
        if not counts:
            rest[0] *= self.rows // self.lists
        return TensorType(element_of(value), [self.lists, *rest])

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
                spreads = given.operands[0], given.results[0]
                if source is not made.args[0]:
                    spreads = _even(spreads[0]), spreads[1]
            else:
                source, (name, given) = value, _signature(op)
                spreads = given.operands[index], given.operands[index]
            kind = self._type(value, counts=False)
            hint = hint_of(value).removesuffix(".by_row") + ".by_part"
            self.views[value] = self._view(op, source, kind, name, (spreads[0], _even(spreads[1])), hint)
        return self.views[value]

    def _give(self, op: AtenOp, index: int, made: SSAValue) -> None:
        """Let the other users of a result take a list in its place, under the shape that they want."""
        old = op.outs[index]
        users = [use for use in old.uses if not _is_list_op(use.operation)]
        rows: SSAValue | None = None
        for use in users:
            user = use.operation
            if isinstance(user, AtenOp) and _is_view(user):
                name, given = _signature(user)
                user.operands[0] = made
                spread = Signature((_even(given.operands[0]),), given.results)
                user.attributes[SIGNATURE] = SignatureAttr.of(name, spread)
                continue
            if rows is None:
                name, given = _signature(op)
                spread = given.results[index]
                rows = self._view(op, made, old.type, name, (_even(spread), spread), f"{hint_of(old)}.by_row")
            user.operands[use.index] = rows

    def _view(
        self,
        op: Operation,
        source: SSAValue,
        kind: Attribute,
        mesh: str,
        spreads: tuple[Sharding, Sharding],
        hint: str,
    ) -> SSAValue:
        """A view in front of an op, of its phase and stage."""
        assert isinstance(kind, TensorType)
        kept = {name: op.attributes[name] for name in (STAGE, SEGMENT) if name in op.attributes}
        signature = SignatureAttr.of(mesh, Signature(spreads[:1], spreads[1:]))
        given = {"size": plain_attribute(kind.get_shape()), SIGNATURE: signature, **kept}
        new = like(op, "view", [source], [kind], hint, **given)
        self.block.insert_op_before(new, op)
        return new.outs[0]


def _even(spread: Sharding) -> Sharding:
    """A sharding whose first dim, which is split evenly, has no boundaries of its own."""
    return replace(spread, dims=(DimSharding(spread.dims[0].axes), *spread.dims[1:]))
