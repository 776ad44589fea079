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
Limit of the seconds of reading a group's parameters, in kernel launches. An op of several operands then takes some ten
launches, so that larger groups would gain little, and the parameters stay in the caches of a CPU.
"""

Update: TypeAlias = list[ComputeOp]
"""The ops of one parameter's update, in order."""


@dataclass(frozen=True)
class JoinUpdatesPass(ModulePass):
    """
    Join the same steps of several parameters' updates in one call of a multi-tensor function.

    An update of a parameter is many small ops, or one fused op. Each is a kernel launch, which on a GPU takes longer
    than the work. Updates are joined if they are the same sequence of ops, on values of the same dtypes, with the same
    settings and numbers, between the same collectives, so that they do not wait for gradients of another bucket. Shapes
    and shardings may differ. An op that torch has no multi-tensor function for stays one op per parameter. Joined ops
    overwrite parameters and states that are not read again, which makes `train.assign` unnecessary.

    The squares that are summed for the norm of all gradients are joined as well (`train.sum_of_squares`), and gradients
    are scaled in the joined updates.

    A group has as many parameters as are read in the time of four kernel launches, because its intermediate values are
    alive for all of them at once. Fused updates have no intermediate values, so their groups are unlimited.

    Requires: collectives in their order (`overlap`).
    Ensures: the same values. Frees are dropped: run `insert-frees` afterwards.

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
    """Limit of a group's parameters on a rank, in MiB; by default the size that the module's cluster reads in the time
    of four kernel launches, or 25 without a cluster. Fused updates have no limit by default."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        has_cluster = any(isinstance(inner, ClusterOp) for inner in op.ops)
        has_mesh = any(SIGNATURE in inner.attributes for inner in op.walk())
        for func in step_functions(op):
            limits: dict[str, float] = {}
            meshes: dict[str, Mesh] = {}
            for _, mesh in stage_meshes(op, func) if has_mesh else ():
                meshes[mesh.name] = mesh
                limits[mesh.name] = self._limit(cluster_on(op, mesh) if has_cluster else None)
            fused = math.inf if self.group_mb is None else self._limit(None)
            _join(func.body.block, meshes, _GroupLimits(limits, self._limit(None), fused))

    def _limit(self, cluster: Cluster | None) -> float:
        if self.group_mb is not None:
            return self.group_mb * _MIB
        if cluster is None:
            return _USUAL_BYTES
        return min(_LAUNCHES * device.launch * device.memory_bandwidth for device in cluster.kinds_used)


@dataclass(frozen=True)
class _GroupLimits:
    """The limits of a group's parameters in bytes: by mesh, without a mesh, and of fused updates."""

    by_mesh: Mapping[str, float]
    usual: float
    fused: float

    def of(self, update: Update, mesh: str) -> float:
        """Return the limit of a group of updates like this one."""
        is_fused = all(isinstance(op, train.FusedOp) for op in update)
        return self.fused if is_fused else self.by_mesh.get(mesh, self.usual)


def _join(block: Block, meshes: Mapping[str, Mesh], limits: _GroupLimits) -> None:
    forget_memory_plan(block)
    sum_squares(block)
    _together(block)
    place: dict[Operation, int] = {op: number for number, op in enumerate(block.ops)}
    for segment in _segments(block):
        groups = list(_groups(segment, meshes, limits))
        if groups:
            _write(segment, groups, place)


def _segments(block: Block) -> Iterator[list[Operation]]:
    """Yield runs of ops without communication between them that contain updates."""
    for computes, ops in groupby(list(block.ops), key=lambda op: isinstance(op, ComputeOp | SliceOp)):
        segment = list(ops)
        if computes and any(map(train.is_update, segment)):
            yield segment


def _together(block: Block) -> None:
    """
    Move ops of an update on states alone behind the wait for its gradient, to the rest of the update.

    Ops, including waits, are written where they are first needed, so a wait can divide the ops of an update.
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
    """Yield the groups of at least two updates to join, among ops without communication between them."""
    independent, same = _independent(segment), dict[object, list[Update]]()
    common = _common(independent)
    for update in independent:
        same.setdefault(_structure(update, common), []).append(update)
    for updates in same.values():
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
    Return the updates whose ops need no value from another parameter's update, and that cannot be skipped.

    A skipped update does not overwrite anything in place.
    """
    owner: dict[Operation, object] = {}
    updates: dict[object, Update] = {}
    after: set[Operation] = set()
    entangled: set[object] = set()
    for op in segment:
        key = _key_of_update(op)
        producers = [value.op for value in op.operands if isinstance(value, OpResult)]
        of_others = [producer for producer in producers if producer in after or owner.get(producer, key) != key]
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
    """Return a key that the ops of one update have in common, or None for other ops."""
    if isinstance(op, train.FusedOp):
        return op
    if train.EACH_GRADIENT in op.attributes:
        # An op on a gradient that only one update reads, such as its scaling, belongs to that update.
        keys = {_key_of_update(use.operation) for result in op.results for use in result.uses}
        return keys.pop() if len(keys) == 1 else None
    return train.updated_parameter(op) if isinstance(op, ComputeOp) else None


def _common(updates: Sequence[Update]) -> set[SSAValue]:
    reader: dict[SSAValue, int] = {}
    common: set[SSAValue] = set()
    for number, update in enumerate(updates):
        for value in (value for op in update for value in op.operands if not shape_of(value)):
            if reader.setdefault(value, number) != number:
                common.add(value)
    return common


def _structure(update: Update, common: Container[SSAValue]) -> object:
    """
    Return a key that is equal for updates that do the same to values of any shape.

    Args:
        common: values that must be identical in both updates.
    """
    number: dict[Operation, int] = {op: index for index, op in enumerate(update)}
    places: dict[SSAValue, int] = {}
    steps: list[object] = []
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
        attributes = tuple((name, op.attributes[name]) for name in sorted(op.attributes) if name not in _OF_ONE)
        steps.append((op.name, *operands, "", mesh, *attributes, *map(dtype_of, op.outs)))
    return tuple(steps)


_OF_ONE = (SIGNATURE, PIN, train.UPDATE)
"""The attributes that may differ between joined updates."""


def _bytes(update: Update, mesh: Mesh | None) -> int:
    """Return the bytes of a parameter on a rank, or of the largest value that its update computes."""
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
    Write joined ops at the place of the last op of their group.

    Ops that need a result of an update, and are not joined, come after all groups.

    Args:
        place: index of each op in the program before the change.
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
            joined_ops = list[Operation]()
            for new in _of_group(last[op]):
                block.insert_op_before(new, end)
                joined_ops.append(new)
            _write_over(joined_ops, lambda user: user in written or place.get(_around(user, block), begin) < begin)
            written.update(joined_ops)
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
    """Yield the joined ops of updates with the same structure, in order; ops that cannot be joined stay single."""
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
    """Return the op of a block that contains another, or the other op itself if no op does."""
    return (block.find_ancestor_op_in_block(op) if block is not None else None) or op


def _write_over(made: Sequence[Operation], is_before: Callable[[Operation], bool]) -> None:
    """
    Let ops overwrite old values in place, and remove the assignments that only copy new values there.

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
        # A value that is read afterwards must not be overwritten.
        if all(number[user] <= last if user in number else is_before(user) for user in users):
            for op in chain:
                op.in_place = UnitAttr()
            for copied, value in zip(assign.outs, new, strict=True):
                value.name_hint = copied.name_hint
                copied.replace_all_uses_with(value)
            assign.detach()
            assign.erase()


def _chain(old: Sequence[SSAValue], new: Sequence[SSAValue]) -> list[train.ForeachOp]:
    """Return the ops from old values to new ones by their first lists, the last first; empty without such a chain."""
    chain: list[train.ForeachOp] = []
    values = list(new)
    while values != list(old):
        producer = values[0].owner
        if (
            not isinstance(producer, train.ForeachOp)
            or producer.overload not in FOREACH
            or list(producer.outs) != values
        ):
            return []
        if chain and any(len(list(value.uses)) > 1 for value in values):
            return []
        chain.append(producer)
        values = list(producer.args[: producer.count])
    return chain


def _joined(ops: Sequence[ComputeOp]) -> train.ForeachOp | None:
    """Return the op that replaces equal ops and has their results, or None if torch has no function for it."""
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
    joined = train.ForeachOp(first.name, lists, shared, [value.type for value in results], attributes)
    if (signature := _signature(ops, [*lists], [*shared])) is not None:
        joined.attributes[SIGNATURE] = signature
    levels = zip(*(layer_of(each).split(".") for each in ops), strict=False)
    if layer := ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)):
        joined.location = NameLoc(StringAttr(layer), UnknownLoc())
    for before, after in zip(results, joined.outs, strict=True):
        after.name_hint = before.name_hint
        before.replace_all_uses_with(after)
    return joined


def _has_form(op: ComputeOp, lists: Mapping[str, Sequence[SSAValue]], shared: Mapping[str, SSAValue]) -> bool:
    """Return whether there is a multi-tensor function for an op with such operands."""
    if isinstance(op, train.FusedOp):
        return set(shared) == {"step", "lr"}
    if isinstance(op, train.AssignOp):
        return not shared
    form = FOREACH.get(op.name)
    if form is None or not isinstance(op, AtenOp) or not dtype_of(op.outs[0]).startswith(("float", "bfloat")):
        return False
    return foreach_problem(form, frozenset(lists), frozenset(shared), frozenset(op.arguments())) is None


def _is_elementwise(op: ComputeOp, lists: Mapping[str, Sequence[SSAValue]], at: int) -> bool:
    tensors = [*(values[at] for values in lists.values()), *op.outs]
    same_dtype = isinstance(op, train.FusedOp) or len(set(map(dtype_of, tensors))) == 1
    return same_dtype and len(set(map(shape_of, tensors))) == 1


def _signature(ops: Sequence[ComputeOp], lists: Sequence[str], shared: Sequence[str]) -> Attribute | None:
    """Return the joined signature of all members, or None if there are no signatures."""
    attribute = ops[0].attributes.get(SIGNATURE)
    signatures = [op.signature for op in ops]
    if not isinstance(attribute, SignatureAttr):
        return None
    members = [signature for signature in signatures if signature is not None]
    names = ops[0].operand_names()
    operands = [member.operands[names.index(name)] for name in lists for member in members]
    operands += [members[0].operands[names.index(name)] for name in shared]
    results = [member.results[kind] for kind in range(len(ops[0].outs)) for member in members]
    return SignatureAttr.of(attribute.data.mesh, Signature(tuple(operands), tuple(results)))
