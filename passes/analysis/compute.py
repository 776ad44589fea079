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
    How often an op runs in a step whose batch is cut into parts.

    Args:
        count: as often.
        factor: the factor of its rule of which it has one part in each turn; None where it has all of it.
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
    """The op's row of the table; one of no distinction for ops that have none."""
    return op.spec if isinstance(op, AtenOp) else _OPAQUE


def is_cast(op: ComputeOp) -> bool:
    """Whether an op only changes the dtype of its operand."""
    return op.name == "aten._to_copy"


def is_view(op: ComputeOp) -> bool:
    """Whether an op only gives the same elements another shape."""
    return spec_of(op).view


def is_view_or_cast(op: ComputeOp) -> bool:
    """Whether an op gives the same elements another shape or dtype."""
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
    """Whether the op does many operations per element: products of matrices, attention, convolutions."""
    return spec_of(op).contracts


def local_bytes(value: SSAValue, sharding: Sharding, mesh: Mesh) -> int:
    """The bytes of the largest part of a value that a device holds."""
    size = element_bytes(value)
    for extent in largest_local_shape(shape_of(value), sharding, mesh):
        size *= extent
    return size


def counts_of(op: ComputeOp) -> OpCounts:
    """What the op does by the sizes of its factors; the same object for equal uses."""
    key = op.use_key() if isinstance(op, AtenOp) else (op.use_key(), op.rule())
    if (counts := _COUNTS.get(key)) is None:
        values = (*op.args, *op.outs)
        dtypes, widths = [dtype_of(value) for value in values], [element_bytes(value) for value in values]
        counts = _COUNTS[key] = OpCounts.of(_costed(op), op.instance(), op.rule(), dtypes, widths)
    return counts


_COUNTS: dict[object, OpCounts] = {}


def _costed(op: ComputeOp) -> OpSpec:
    """The row that says what an op costs: its own, or that of what has none."""
    if isinstance(op, AtenOp):
        return op.spec
    return _UPDATES[op.name] if isinstance(op, TrainOp) else _OPAQUE


def _counts_of_member(member: Member, plain: object) -> OpCounts:
    """What is done to one member of a multi-tensor op, whose plain arguments are `plain`."""
    instance = member.instance
    key = (instance.name, plain, instance.operand_names, instance.operands, member.dtypes)
    if (counts := _COUNTS.get(key)) is None:
        spec = _UPDATES.get(instance.name) or op_table()[instance.name]
        counts = OpCounts.of(spec, instance, member.rule, member.dtypes, member.widths)
        _COUNTS[key] = counts
    return counts


def _foreach_work(
    op: ForeachOp | SumOfSquaresOp, signature: Signature, mesh: Mesh, rank: int | None, keyed: bool, turns: Turns
) -> OpWork:
    """What a multi-tensor op does: the sum of what is done to its members, in one launch."""
    plain = tuple((name, value) for name, value in op.attributes.items() if "." not in name)
    works: list[OpWork] = []
    for member in op.members_as(signature):
        assert member.signature is not None
        works.append(_work(_counts_of_member(member, plain), member.signature, mesh, rank, keyed, turns))
    name = op.name.removeprefix("train.")
    key = f"{name}({'; '.join(work.key for work in works)})" if keyed else ""
    first = works[0]
    return OpWork(first.family, first.dtype, sum(w.flops for w in works), sum(w.bytes for w in works), key)


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
    What the op does on `rank` with its own part, in one turn; None: on the device with the largest share.

    Args:
        keyed: whether to name it, for measured times.
        part: what it does of a kernel of several ops (`fusion.py`); None: it is a kernel of its own.
    """
    if isinstance(op, ForeachOp | SumOfSquaresOp):
        return _foreach_work(op, signature, mesh, rank, keyed, turns)
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
    The time of an op until the last rank is done.

    Of an even split every rank is taken to have the largest part.

    Args:
        part: as of `op_work`.
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
    The times of an op with each of several signatures, all turns together; see `op_seconds`.

    Args:
        joining: whether those that `join-updates` joins are counted without launch, as a part of what it makes.
        part: as of `op_work`.
    """
    devices = cluster.kinds_used
    keyed, counts = has_tables(devices), None if isinstance(op, ForeachOp | SumOfSquaresOp) else counts_of(op)
    joins = joining and may_join(op)
    if joins and isinstance(op, AssignOp):
        # The op that makes the new value writes it over the old one.
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
    The time of one turn on each rank, with its own part on its own device; a rank without a part takes none.

    Args:
        joins: as of `op_cost.op_seconds`.
        part: as of `op_work`.
    """
    mesh, keyed = cluster.mesh, has_tables(cluster.kinds_used)
    shardings = zip((*op.args, *op.outs), (*signature.operands, *signature.results), strict=True)
    splits = {split: None for value, s in shardings for split in zip(shape_of(value), s.dims, strict=True)}
    # Ranks on devices of one kind whose parts have the same sizes do the same work.
    kinds = list(
        zip(cluster.placement, *(rank_extents(size, dim, mesh) for size, dim in splits if dim.axes), strict=True)
    )
    known: dict[tuple[int, ...], float] = {}
    for rank, kind in enumerate(kinds):
        if kind not in known:
            work = op_work(op, signature, mesh, rank, keyed=keyed, turns=turns, part=part)
            known[kind] = op_cost.op_seconds(cluster.device(rank), work, joins=joins)
    return [known[kind] for kind in kinds]


def has_tables(devices: Iterable[Device]) -> bool:
    """Whether a device has measured times of single ops, so that it matters how they are named."""
    return any(device.table for device in devices)


def copying(dtype: str, moved: float) -> OpWork:
    """What is done where bytes are read and written, and nothing is computed."""
    return OpWork(COPY, dtype, 0.0, moved)


def slice_work(op: SliceOp, mesh: Mesh) -> OpWork:
    """What taking its own part of a value is to a rank: a view, which has a name only so that it can be measured."""
    dtype = dtype_of(op.operand)
    shape = "x".join(map(str, largest_local_shape(shape_of(op.operand), op.sharding, mesh)))
    return OpWork(VIEWS, dtype, 0.0, 0.0, f"slice({dtype}[{shape}])")


def is_uneven(signature: Signature) -> bool:
    """Whether some dim is split at boundaries of its own."""
    return any(d.offsets is not None for s in (*signature.operands, *signature.results) for d in s.dims)
