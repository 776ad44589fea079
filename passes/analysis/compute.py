"""The work and the cost of an op on a device, by signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, dtype_of, element_bytes, shape_of
from ...dialects.spmd import SliceOp
from ...dialects.train import AssignOp, ForeachOp, Member, SumOfSquaresOp, TrainOp, is_update, may_join
from ...ir import op_cost
from ...ir.cluster import Cluster, Device
from ...ir.interned import Interned
from ...ir.mesh import Mesh
from ...ir.op_cost import COPY, VIEWS, KernelPart, OpWork
from ...ir.ops.counts import OpCounts
from ...ir.ops.spec import OpSpec
from ...ir.ops.table import op_table
from ...ir.sharding import Sharding, largest_local_shape, rank_extents
from ...ir.signatures import Signature, local_sizes, rank_sizes


@dataclass(frozen=True, eq=False)
class Turns(metaclass=Interned):
    """
    The runs of an op in a step whose batch is cut into parts.

    Args:
        count: number of runs.
        factor: factor of the op's rule that is cut, so that each run has one part of it, or None if no factor is cut.
    """

    count: int = 1
    factor: str | None = None


ONCE = Turns()

_UPDATES = {
    name: OpSpec(name, (), "() -> ()", flops=flops, family="update")
    for name, flops in (
        ("train.adam", "15*each"),
        ("train.adamw", "15*each"),
        ("train.sgd", "4*each"),
        ("train.increment", "each"),
        ("train.assign", "0"),
    )
}
_OPAQUE = OpSpec("", (), "() -> ()", family="opaque")


def spec_of(op: ComputeOp) -> OpSpec:
    """Return the op's row of the table, or a neutral row for ops without one."""
    return op.spec if isinstance(op, AtenOp) else _OPAQUE


def is_cast(op: ComputeOp) -> bool:
    """Return whether an op only changes the dtype of its operand."""
    return op.name == "aten._to_copy"


def is_view(op: ComputeOp) -> bool:
    """Return whether an op only gives the same elements another shape."""
    return spec_of(op).view


def is_view_or_cast(op: ComputeOp) -> bool:
    """Return whether an op gives the same elements another shape or dtype."""
    return is_view(op) or is_cast(op)


def is_for_updates(op: Operation, through: Callable[[ComputeOp], bool]) -> bool:
    """
    Return whether an op belongs to an update, or only updates use its results.

    Args:
        through: whether the results of an op between it and an update count as its own.
    """
    if is_update(op):
        return True
    users = [use.operation for result in op.results for use in result.uses]
    return bool(users) and all(
        is_update(user) or (isinstance(user, ComputeOp) and through(user) and is_for_updates(user, through))
        for user in users
    )


def is_contraction(op: ComputeOp) -> bool:
    """Return whether the op does many operations per element: products of matrices, attention, convolutions."""
    return spec_of(op).contracts


def local_bytes(value: SSAValue, sharding: Sharding, mesh: Mesh) -> int:
    """Return the bytes of the largest part of a value that a device holds."""
    size = element_bytes(value)
    for extent in largest_local_shape(shape_of(value), sharding, mesh):
        size *= extent
    return size


def counts_of(op: ComputeOp) -> OpCounts:
    """Return the work of an op as a function of the sizes of its factors; the same object for equal uses."""
    key = op.use_key() if isinstance(op, AtenOp) else (op.use_key(), op.rule())
    if (counts := _COUNTS.get(key)) is None:
        values = (*op.args, *op.outs)
        dtypes, widths = [dtype_of(value) for value in values], [element_bytes(value) for value in values]
        counts = _COUNTS[key] = OpCounts.of(_costed(op), op.instance(), op.rule(), dtypes, widths)
    return counts


_COUNTS: dict[object, OpCounts] = {}


def _costed(op: ComputeOp) -> OpSpec:
    if isinstance(op, AtenOp):
        return op.spec
    return _UPDATES[op.name] if isinstance(op, TrainOp) else _OPAQUE


def _counts_of_member(member: Member, plain: object) -> OpCounts:
    """Return the counts of one member of a multi-tensor op, whose plain arguments are `plain`."""
    instance = member.instance
    key = (instance.name, plain, instance.operand_names, instance.operands, member.dtypes)
    if (counts := _COUNTS.get(key)) is None:
        spec = _UPDATES.get(instance.name) or op_table()[instance.name]
        counts = OpCounts.of(spec, instance, member.rule, member.dtypes, member.widths)
        _COUNTS[key] = counts
    return counts


def op_work(
    op: ComputeOp,
    signature: Signature,
    mesh: Mesh,
    rank: int | None = None,
    *,
    keyed: bool = True,
    turns: Turns = ONCE,
    part: KernelPart | None = None,
) -> OpWork:
    """
    Return the work of an op on the local part of `rank` in one turn; with rank None, on the device with most work.

    Args:
        keyed: whether to name the work, for measured times.
        part: the op's part in a kernel of several ops (`fusion.py`), or None if the op is a kernel by itself.
    """
    if isinstance(op, ForeachOp | SumOfSquaresOp):
        # A multi-tensor op does the work of its members in one launch.
        plain = tuple((name, value) for name, value in op.attributes.items() if "." not in name)
        works: list[OpWork] = []
        for member in op.members_as(signature):
            assert member.signature is not None
            works.append(_work(_counts_of_member(member, plain), member.signature, mesh, rank, keyed, turns))
        name = op.name.removeprefix("train.")
        key = f"{name}({'; '.join(work.key for work in works)})" if keyed else ""
        first = works[0]
        return OpWork(first.family, first.dtype, sum(w.flops for w in works), sum(w.bytes for w in works), key)
    return _work(counts_of(op), signature, mesh, rank, keyed, turns, part)


def _work(
    counts: OpCounts,
    signature: Signature,
    mesh: Mesh,
    rank: int | None,
    keyed: bool,
    turns: Turns,
    part: KernelPart | None = None,
) -> OpWork:
    if not counts.moved and not keyed:
        return counts.work({}, keyed=False)
    rule = counts.rule
    sizes = local_sizes(rule, signature, mesh) if rank is None else rank_sizes(rule, signature, mesh, rank)
    if turns.factor is not None:
        sizes[turns.factor] = -(-sizes[turns.factor] // turns.count)
    return counts.work(sizes, keyed=keyed, part=part)


def op_seconds(op: ComputeOp, signature: Signature, cluster: Cluster, part: KernelPart | None = None) -> float:
    """
    Return the seconds of an op until the last rank is done.

    With an even split, every rank counts as having the largest part.

    Args:
        part: as in `op_work`.
    """
    return seconds_by_signature(op, (signature,), cluster, part=part)[0]


def seconds_by_signature(
    op: ComputeOp,
    signatures: Sequence[Signature],
    cluster: Cluster,
    turns: Turns = ONCE,
    *,
    joining: bool = False,
    part: KernelPart | None = None,
) -> list[float]:
    """
    Return the seconds of an op with each of several signatures, all turns together; see `op_seconds`.

    Args:
        joining: whether ops that `join-updates` joins count without a launch, as parts of the joined op.
        part: as in `op_work`.
    """
    devices = cluster.kinds_used
    keyed, counts = has_tables(devices), None if isinstance(op, ForeachOp | SumOfSquaresOp) else counts_of(op)
    joins = joining and may_join(op)
    if joins and isinstance(op, AssignOp):
        # The op that produces the new value writes it over the old one.
        return [0.0] * len(signatures)
    seconds: list[float] = []
    for signature in signatures:
        if is_uneven(signature):
            seconds.append(turns.count * max(rank_seconds(op, signature, cluster, turns, joins=joins, part=part)))
        else:
            if counts is None:
                work = op_work(op, signature, cluster.mesh, keyed=keyed, turns=turns)
            else:
                work = _work(counts, signature, cluster.mesh, None, keyed, turns, part)
            seconds.append(turns.count * max(op_cost.op_seconds(device, work, joins=joins) for device in devices))
    return seconds


def rank_seconds(
    op: ComputeOp,
    signature: Signature,
    cluster: Cluster,
    turns: Turns = ONCE,
    *,
    joins: bool = False,
    part: KernelPart | None = None,
) -> list[float]:
    """
    Return the seconds of one turn on each rank, with its own part on its own device; 0 for a rank without a part.

    Args:
        joins: as in `op_cost.op_seconds`.
        part: as in `op_work`.
    """
    mesh, keyed = cluster.mesh, has_tables(cluster.kinds_used)
    shardings = zip((*op.args, *op.outs), (*signature.operands, *signature.results), strict=True)
    splits = {split: None for value, s in shardings for split in zip(shape_of(value), s.dims, strict=True)}
    # Ranks on devices of one kind whose parts have the same sizes do the same work.
    kinds = list(
        zip(cluster.placement, *(rank_extents(size, dim, mesh) for size, dim in splits if dim.axes), strict=True)
    )
    by_kind: dict[tuple[int, ...], float] = {}
    for rank, kind in enumerate(kinds):
        if kind not in by_kind:
            work = op_work(op, signature, mesh, rank, keyed=keyed, turns=turns, part=part)
            by_kind[kind] = op_cost.op_seconds(cluster.device(rank), work, joins=joins)
    return [by_kind[kind] for kind in kinds]


def has_tables(devices: Iterable[Device]) -> bool:
    """Return whether a device has measured times of single ops, which are found by the name of the work."""
    return any(device.table for device in devices)


def copying(dtype: str, moved: float, launches: int = 1) -> OpWork:
    """Return the work of kernels that read and write `moved` bytes together without computing anything."""
    return OpWork(COPY, dtype, 0.0, moved, launches=launches)


def slice_work(op: SliceOp, mesh: Mesh) -> OpWork:
    """Return the work of taking a rank's own part of a value: a view, whose name only serves measurements."""
    dtype = dtype_of(op.operand)
    shape = "x".join(map(str, largest_local_shape(shape_of(op.operand), op.sharding, mesh)))
    return OpWork(VIEWS, dtype, 0.0, 0.0, f"slice({dtype}[{shape}])")


def is_uneven(signature: Signature) -> bool:
    """Return whether some dim is split at explicit offsets."""
    return any(d.offsets is not None for s in (*signature.operands, *signature.results) for d in s.dims)
