"""Join the updates of several parameters in calls of multi-tensor functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, NameLoc, StringAttr, UnitAttr, UnknownLoc
from xdsl.ir import Attribute, Block, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from ..dialects import train
from ..dialects.aten import AtenOp
from ..dialects.compute import SIGNATURE, ComputeOp, dtype_of, shape_of, value_bytes
from ..dialects.mesh_ops import ClusterOp
from ..dialects.pins import PIN
from ..dialects.sharding_attrs import SignatureAttr
from ..dialects.spmd import SliceOp
from ..ir.cluster import Cluster
from ..ir.mesh import Mesh
from ..ir.ops.foreach import FOREACH, foreach_problem
from ..ir.signatures import Signature
from .analysis.compute import local_bytes
from .step.blocks import layer_of
from .step.memory_plan import forget_memory_plan
from .step.step_view import cluster_on, stage_meshes, step_functions
from .sum_squares import sum_squares

_MIB = 2**20
_USUAL_BYTES = 25 * _MIB

_LAUNCHES = 4
"""
As many times as launching a kernel takes, a group's parameters take to be read. An op of several operands then takes
some ten launches, so that joining more of them would gain little; and they stay in the caches of a CPU.
"""

Update: TypeAlias = list[ComputeOp]
"""The ops of one parameter's update, in order."""


@dataclass(frozen=True)
class JoinUpdatesPass(ModulePass):
    """
    Do the same step of several parameters' updates in one call of a multi-tensor function.

    An update of a parameter is many small ops, or a fused one; each is a kernel to launch, which on a GPU takes longer
    than its work. Updates are joined that are the same sequence of ops, on values of the same dtypes, with the same
    settings and numbers, between the same collectives: so none waits for gradients of another bucket. Shapes and
    shardings may differ. What torch has no multi-tensor function for stays an op of each parameter. Joined ops write
    over parameters and states where these are not read again, and need no `train.assign` then.

    So are the squares that the norm of all gradients sums up (`train.sum_of_squares`), and the scaling of gradients
    goes with their updates.

    A group has as many parameters as are read in four times what launching a kernel takes: what it makes on the way is
    held for all of them at once. Fused updates make nothing on the way: their groups are as large as they can be.

    Requires: collectives in their order (`overlap`).
    Ensures: the same values. Frees are dropped: run `insert-frees` after it.

    Before:
    ```mlir
    func.func @step(%a: tensor<4x8xf32> {train.param = "a"}, %b: tensor<8xf32> {train.param = "b"},
        %a.grad: tensor<4x8xf32>, %b.grad: tensor<8xf32>, %lr: tensor<f64> {train.learning_rate})
        -> (tensor<4x8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.updates = 1 : i64}) {
      %a.step = aten.mul.Tensor %a.grad, %lr {train.update = "a"} : (tensor<4x8xf32>, tensor<f64>) -> tensor<4x8xf32>
      %a.next = aten.sub.Tensor %a, %a.step {train.update = "a"}
        : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
      %a.new = train.assign %a, %a.next {train.update = "a"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
      %b.step = aten.mul.Tensor %b.grad, %lr {train.update = "b"} : (tensor<8xf32>, tensor<f64>) -> tensor<8xf32>
      %b.next = aten.sub.Tensor %b, %b.step {train.update = "b"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      %b.new = train.assign %b, %b.next {train.update = "b"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
      func.return %a.new, %b.new : tensor<4x8xf32>, tensor<8xf32>
    }
    ```

    After:
    ```mlir
    func.func @step(%a: tensor<4x8xf32> {train.param = "a"}, %b: tensor<8xf32> {train.param = "b"},
        %a.grad: tensor<4x8xf32>, %b.grad: tensor<8xf32>, %lr: tensor<f64> {train.learning_rate})
        -> (tensor<4x8xf32> {train.updates = 0 : i64}, tensor<8xf32> {train.updates = 1 : i64}) {
      %a.step, %b.step = train.foreach "aten.mul.Tensor" lists = ["self"] shared = ["other"] %a.grad, %b.grad, %lr
        : (tensor<4x8xf32>, tensor<8xf32>, tensor<f64>) -> (tensor<4x8xf32>, tensor<8xf32>)
      %a.new, %b.new = train.foreach "aten.sub.Tensor" in_place lists = ["self", "other"] %a, %b, %a.step, %b.step
        : (tensor<4x8xf32>, tensor<8xf32>, tensor<4x8xf32>, tensor<8xf32>) -> (tensor<4x8xf32>, tensor<8xf32>)
      func.return %a.new, %b.new : tensor<4x8xf32>, tensor<8xf32>
    }
    ```

    Source: the multi-tensor kernels of NVIDIA's Apex (`multi_tensor_apply`), which `torch.optim` uses by default.
    """

    name = "join-updates"

    group_mb: int | float | None = None
    """The MiB of parameters that a group has at most on a rank; by default what the module's cluster reads in four
    times its launch of a kernel, and 25 without a cluster; of fused updates, any number."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        known = any(isinstance(each, ClusterOp) for each in op.ops)
        has_mesh = any(SIGNATURE in each.attributes for each in op.walk())
        for func in step_functions(op):
            limits: dict[str, float] = {}
            meshes: dict[str, Mesh] = {}
            for _, mesh in stage_meshes(op, func) if has_mesh else ():
                meshes[mesh.name] = mesh
                limits[mesh.name] = self._limit(cluster_on(op, mesh) if known else None)
            fused = math.inf if self.group_mb is None else self._limit(None)
            _join(func.body.block, meshes, _GroupLimits(limits, self._limit(None), fused))

    def _limit(self, cluster: Cluster | None) -> float:
        """The bytes of a group's parameters on a rank."""
        if self.group_mb is not None:
            return self.group_mb * _MIB
        if cluster is None:
            return _USUAL_BYTES
        return min(_LAUNCHES * device.launch * device.memory_bandwidth for device in cluster.kinds_used)


@dataclass(frozen=True)
class _GroupLimits:
    """The bytes of parameters in a group: by mesh, without one, and of fused updates, which make nothing on the way."""

    by_mesh: Mapping[str, float]
    usual: float
    fused: float

    def of(self, update: Update, mesh: str) -> float:
        """That of a group of updates like this one."""
        is_fused = all(isinstance(op, train.FusedOp) for op in update)
        return self.fused if is_fused else self.by_mesh.get(mesh, self.usual)


def _join(block: Block, meshes: Mapping[str, Mesh], limits: _GroupLimits) -> None:
    """Join the updates of a block, in place."""
    forget_memory_plan(block)
    sum_squares(block)
    _together(block)
    place: dict[Operation, int] = {op: number for number, op in enumerate(block.ops)}
    for segment in _segments(block):
        groups = list(_groups(segment, meshes, limits))
        if groups:
            _write(segment, groups, place)


def _segments(block: Block) -> Iterator[list[Operation]]:
    """The ops between which nothing is communicated, where some of them are updates."""
    for computes, ops in groupby(list(block.ops), key=lambda op: isinstance(op, ComputeOp | SliceOp)):
        segment = list(ops)
        if computes and any(map(train.is_update, segment)):
            yield segment


def _together(block: Block) -> None:
    """
    Move what an update makes of states alone behind the wait for its gradient, where the rest of it is.

    Ops are written where they are first needed, a wait too: so it comes between what needs it and what does not.
    """
    segment = {op: number for number, ops in enumerate(_segments(block)) for op in ops}
    place = {op: number for number, op in enumerate(block.ops)}
    heads: dict[tuple[object, int], Operation] = {}
    for op, number in segment.items():
        heads.setdefault((_key_of_update(op), number), op)
    for op in reversed(list(segment)):
        if (name := _key_of_update(op)) is None:
            continue
        users = [use.operation for result in op.results for use in result.uses]
        first = min(users, key=lambda user: place.get(user, -1), default=op)
        if _key_of_update(first) == name and segment.get(first, -1) > segment[op]:
            head = heads[name, segment[first]]
            op.detach()
            block.insert_op_before(op, head)
            segment[op], place[op] = segment[head], place[head]
            heads[name, segment[head]] = op


def _groups(segment: Sequence[Operation], meshes: Mapping[str, Mesh], limits: _GroupLimits) -> Iterator[list[Update]]:
    """The updates to join of ops between which nothing is communicated, at least two in each group."""
    independent, alike = _independent(segment), dict[object, list[Update]]()
    common = _common(independent)
    for update in independent:
        alike.setdefault(_structure(update, common), []).append(update)
    for updates in alike.values():
        signature = updates[0][-1].attributes.get(SIGNATURE)
        name = signature.data.mesh if isinstance(signature, SignatureAttr) else ""
        most = limits.of(updates[0], name)
        group, held = list[Update](), 0
        for update in updates:
            size = _bytes(update, meshes.get(name))
            if group and held + size > most:
                if len(group) > 1:
                    yield group
                group, held = [], 0
            group.append(update)
            held += size
        if len(group) > 1:
            yield group


def _independent(segment: Sequence[Operation]) -> list[Update]:
    """
    The updates of which no op needs anything that the update of another parameter makes, and none may be skipped: what
    is skipped is not written over in place.
    """
    owner: dict[Operation, object] = {}
    updates: dict[object, Update] = {}
    after: set[Operation] = set()
    entangled: set[object] = set()
    for op in segment:
        key = _key_of_update(op)
        made = [value.op for value in op.operands if isinstance(value, OpResult)]
        of_others = [each for each in made if each in after or owner.get(each, key) != key]
        if key is None:
            if of_others:
                after.add(op)
            continue
        assert isinstance(op, ComputeOp)
        owner[op] = key
        updates.setdefault(key, []).append(op)
        if of_others or (isinstance(op, train.TrainOp) and train.FOUND_INF in op.operand_names()):
            entangled.add(key)
    return [update for key, update in updates.items() if key not in entangled]


def _key_of_update(op: Operation) -> object:
    """What ops of one update have in common; None for other ops."""
    if isinstance(op, train.FusedOp):
        return op
    if train.EACH_GRADIENT in op.attributes:
        # What only one update reads of a gradient is a part of it, as its scaling.
        keys = {_key_of_update(use.operation) for result in op.results for use in result.uses}
        return keys.pop() if len(keys) == 1 else None
    return train.updated_parameter(op) if isinstance(op, ComputeOp) else None


def _common(updates: Sequence[Update]) -> set[SSAValue]:
    """The numbers that several updates read: rates, counts, and what is computed from them."""
    reader: dict[SSAValue, int] = {}
    found: set[SSAValue] = set()
    for number, update in enumerate(updates):
        for value in (value for op in update for value in op.operands if not shape_of(value)):
            if reader.setdefault(value, number) != number:
                found.add(value)
    return found


def _structure(update: Update, common: Container[SSAValue]) -> object:
    """
    What updates have in common that do the same, to values of any shape.

    Args:
        common: what is the same value where they do.
    """
    number: dict[Operation, int] = {op: index for index, op in enumerate(update)}
    places: dict[SSAValue, int] = {}
    found: list[object] = []
    for op in update:
        operands: list[object] = []
        for value in op.operands:
            if isinstance(value, OpResult) and value.op in number:
                operands.append((number[value.op], value.index))
            elif value in common:
                operands.append(value)
            else:
                operands.append((places.setdefault(value, len(places)), dtype_of(value)))
        signature = op.attributes.get(SIGNATURE)
        mesh = signature.data.mesh if isinstance(signature, SignatureAttr) else None
        kept = tuple((name, op.attributes[name]) for name in sorted(op.attributes) if name not in _OF_ONE)
        found.append((op.name, *operands, "", mesh, *kept, *map(dtype_of, op.outs)))
    return tuple(found)


_OF_ONE = (SIGNATURE, PIN, train.UPDATE)
"""Attributes in which updates that are joined may differ."""


def _bytes(update: Update, mesh: Mesh | None) -> int:
    """The bytes of a parameter on a rank, or of the largest value that its update makes."""
    if mesh is None:
        return max(value_bytes(value) for op in update for value in op.outs)
    return max(
        local_bytes(value, sharding, mesh)
        for op in update
        if op.signature is not None
        for value, sharding in zip(op.outs, op.signature.results, strict=True)
    )


def _write(segment: Sequence[Operation], groups: Sequence[list[Update]], place: Mapping[Operation, int]) -> None:
    """
    Put joined ops where the last of their group was.

    What needs something of an update, and is not joined itself, comes after all groups.

    Args:
        place: of ops in the program so far.
    """
    block, end = segment[0].parent_block(), segment[-1].next_op
    begin = place[segment[0]]
    assert block is not None
    assert end is not None, "a step function returns"
    number = {op: index for index, op in enumerate(segment)}
    last = {segment[max(number[op] for update in group for op in update)]: group for group in groups}
    joined: set[Operation] = {op for group in groups for update in group for op in update}
    waiting, later, written = set(joined), list[Operation](), set[Operation]()
    for op in segment:
        op.detach()
    for op in segment:
        if op in last:
            made = list[Operation]()
            for each in _of_group(last[op]):
                block.insert_op_before(each, end)
                made.append(each)
            _write_over(made, lambda user: user in written or place.get(_around(user, block), begin) < begin)
            written.update(made)
        elif op not in joined:
            if any(isinstance(value, OpResult) and value.op in waiting for value in op.operands):
                waiting.add(op)
                later.append(op)
            else:
                block.insert_op_before(op, end)
                written.add(op)
    for op in later:
        block.insert_op_before(op, end)


def _of_group(group: Sequence[Update]) -> Iterator[Operation]:
    """The ops of updates that have the same structure, in order; what cannot be joined goes parameter by parameter."""
    single = 0
    for at in range(len(group[0]) + 1):
        joined = _joined([update[at] for update in group]) if at < len(group[0]) else None
        if joined is not None or at == len(group[0]):
            for update in group:
                yield from update[single:at]
            single = at + 1
        if joined is not None:
            yield joined
            for update in group:
                update[at].erase()


def _around(op: Operation, block: Block | None) -> Operation:
    """The op of a block that has another in it; that one itself where none has."""
    return (block.find_ancestor_op_in_block(op) if block is not None else None) or op


def _write_over(made: Sequence[Operation], is_before: Callable[[Operation], bool]) -> None:
    """
    Let ops write new values over old ones, in the place of assignments that only copy them there.

    Args:
        made: the ops of a group, in order.
        is_before: whether an op comes before all of them.
    """
    number = {op: index for index, op in enumerate(made)}
    for assign in made:
        if not isinstance(assign, train.ForeachOp) or assign.overload != train.AssignOp.name:
            continue
        old, new = assign.args[: assign.count], assign.args[assign.count :]
        if not (chain := _chain(old, new)):
            continue
        last = number[chain[-1]]
        users = {use.operation for value in old for use in value.uses} - {assign}
        # What is read again afterwards has to stay as it is.
        if all(number[user] <= last if user in number else is_before(user) for user in users):
            for op in chain:
                op.in_place = UnitAttr()
            for copied, value in zip(assign.outs, new, strict=True):
                value.name_hint = copied.name_hint
                copied.replace_all_uses_with(value)
            assign.detach()
            assign.erase()


def _chain(old: Sequence[SSAValue], new: Sequence[SSAValue]) -> list[train.ForeachOp]:
    """The ops that lead from old values to new ones, each by its first list, the last first; none where none do."""
    chain: list[train.ForeachOp] = []
    values = list(new)
    while values != list(old):
        made = values[0].owner
        if not isinstance(made, train.ForeachOp) or made.overload not in FOREACH or list(made.outs) != values:
            return []
        if chain and any(len(list(value.uses)) > 1 for value in values):
            return []
        chain.append(made)
        values = list(made.args[: made.count])
    return chain


def _joined(ops: Sequence[ComputeOp]) -> train.ForeachOp | None:
    """The op in the place of alike ones, whose results it has; None where torch has no function for it."""
    first, count = ops[0], len(ops[0].outs)
    lists: dict[str, list[SSAValue]] = {}
    shared: dict[str, SSAValue] = {}
    for at, name in enumerate(first.operand_names()):
        values = [op.operands[at] for op in ops]
        if not shape_of(values[0]) and all(value is values[0] for value in values):
            shared[name] = values[0]
        else:
            lists[name] = values
    if not _has_form(first, lists, shared) or not all(_is_elementwise(op, lists, at) for at, op in enumerate(ops)):
        return None
    results = [op.outs[kind] for kind in range(count) for op in ops]
    attributes = {name: value for name, value in first.attributes.items() if name not in _OF_ONE}
    made = train.ForeachOp(first.name, lists, shared, [value.type for value in results], attributes)
    if (signature := _signature(ops, [*lists], [*shared])) is not None:
        made.attributes[SIGNATURE] = signature
    if layer := _layer_of_all(ops):
        made.location = NameLoc(StringAttr(layer), UnknownLoc())
    for before, after in zip(results, made.outs, strict=True):
        after.name_hint = before.name_hint
        before.replace_all_uses_with(after)
    return made


def _layer_of_all(ops: Sequence[ComputeOp]) -> str:
    """The innermost module that has the parameters of all ops; empty where that is the model."""
    levels = zip(*(layer_of(op).split(".") for op in ops), strict=False)
    return ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))


def _has_form(op: ComputeOp, lists: Mapping[str, Sequence[SSAValue]], shared: Mapping[str, SSAValue]) -> bool:
    """Whether there is a multi-tensor function for an op with such operands."""
    if isinstance(op, train.FusedOp):
        return set(shared) == {"step", "lr"}
    if isinstance(op, train.AssignOp):
        return not shared
    form = FOREACH.get(op.name)
    if form is None or not isinstance(op, AtenOp) or not dtype_of(op.outs[0]).startswith(("float", "bfloat")):
        return False
    return foreach_problem(form, frozenset(lists), frozenset(shared), frozenset(op.arguments())) is None


def _is_elementwise(op: ComputeOp, lists: Mapping[str, Sequence[SSAValue]], at: int) -> bool:
    """Whether the tensors of a member are all of one shape, and, but for a fused update, of one dtype."""
    tensors = [*(values[at] for values in lists.values()), *op.outs]
    alike = isinstance(op, train.FusedOp) or len(set(map(dtype_of, tensors))) == 1
    return alike and len(set(map(shape_of, tensors))) == 1


def _signature(ops: Sequence[ComputeOp], lists: Sequence[str], shared: Sequence[str]) -> Attribute | None:
    """The signatures of all members as one; None where nothing is decided."""
    given = ops[0].attributes.get(SIGNATURE)
    signatures = [op.signature for op in ops]
    if not isinstance(given, SignatureAttr):
        return None
    known = [signature for signature in signatures if signature is not None]
    names = ops[0].operand_names()
    operands = [each.operands[names.index(name)] for name in lists for each in known]
    operands += [known[0].operands[names.index(name)] for name in shared]
    results = [each.results[kind] for kind in range(len(ops[0].outs)) for each in known]
    return SignatureAttr.of(given.data.mesh, Signature(tuple(operands), tuple(results)))
