"""Which collectives travel together, and when they start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.ir import BlockArgument, Operation, OpResult

from ...dialects.compute import dtype_of, shape_of, value_bytes
from ...dialects.spmd import CollectiveOp
from ...dialects.step import BACKWARD, sharding_of
from ...ir.cluster import Cluster
from ...ir.collective_cost import Method, cheapest_method, methods_for
from ...ir.collectives import CollectiveKind, Step
from ...ir.sharding import Reduction
from ..analysis.durations import communication_of
from ..analysis.fusion import fused_parts
from .early import is_number, parts_of_one
from .flow import CollectiveRole, OpFlow
from .timing import ComputeTimes

Joins: TypeAlias = Callable[[Sequence[CollectiveOp], CollectiveOp], bool]
"""Whether a collective may join those of a group, which have its key."""


@dataclass(frozen=True)
class BucketKey:
    """
    The properties that all collectives of a bucket have in common.

    `methods` has the ways to carry out the bucket, of which the cheapest for its size is taken. Of collectives that
    bring arguments, `height` counts the steps still to come, and `backward` tells backward from forward.
    `parts` is whether they work on parts of the batch, one after the other, and not once.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    reduction: Reduction
    dtype: str
    methods: tuple[Method, ...]
    height: int
    backward: bool
    parts: bool


@dataclass(frozen=True)
class Bucket:
    """
    Collectives to start together.

    Args:
        start: the position in an `OpFlow` of the op after which they start; -1 before all ops.
        methods: the ways to carry them out.
    """

    members: tuple[CollectiveOp, ...]
    start: int
    methods: tuple[Method, ...]


class BucketTraffic:
    """The collectives of a flow by what they send, and the times of the ops that run beside them."""

    def __init__(self, flow: OpFlow, cluster: Cluster | None, bucket_bytes: float | None) -> None:
        self.flow = flow
        parts = fused_parts(flow.view.func)
        self.times = ComputeTimes([*flow.body, *flow.updates], cluster, bucket_bytes, parts)
        collectives = [op for role in CollectiveRole for op in flow.of(role)]
        self.bytes = {op: communication_of(op, flow.mesh).whole_bytes for op in collectives}
        self.keys = {op: _key(op, flow, cluster) for op in collectives}

    def size(self, ops: Iterable[CollectiveOp]) -> float:
        """The bytes of `ops` together, as `Communication` counts them."""
        return sum(self.bytes[op] for op in ops)

    def fits(self, group: Sequence[CollectiveOp], op: CollectiveOp) -> bool:
        """Whether a bucket of `group` has room for `op`."""
        key = self.keys[op]
        return self.size((*group, op)) <= self.times.bucket_bytes(key.kind, key.axes)

    def latest_start(self, group: Sequence[CollectiveOp]) -> int:
        """
        The last position at which `group` may start and be over in time; -1 where that is not known.

        The steps that are still to come are given as much time as this one.
        """
        key, use = self.keys[group[0]], min(map(self.flow.first_use, group))
        return self.times.latest_start(key.kind, key.axes, self.size(group), use, steps=key.height + 1)

    def bucket(self, group: Sequence[CollectiveOp], start: int) -> Bucket:
        """Return the bucket of a group, to start after the op at a position."""
        return Bucket(tuple(group), start, self.keys[group[0]].methods)

    def grouped(self, ops: Iterable[CollectiveOp], joins: Joins) -> list[list[CollectiveOp]]:
        """Put each of `ops`, in order, into the latest group of its key if it `joins` it, else into a new one."""
        groups: list[list[CollectiveOp]] = []
        latest: dict[BucketKey, list[CollectiveOp]] = {}
        for op in ops:
            group = latest.get(self.keys[op])
            if group is None or not joins(group, op):
                group = latest[self.keys[op]] = []
                groups.append(group)
            group.append(op)
        return groups


def _key(op: CollectiveOp, flow: OpFlow, cluster: Cluster | None) -> BucketKey:
    step = op.step(sharding_of(op.operand), flow.mesh)
    backward = flow.roles[op] is CollectiveRole.ARGUMENTS and BACKWARD in op.attributes
    time = step.target.over_time(flow.mesh)
    parts = bool(time.split_axes or time.partial)
    methods = _methods(op, step, cluster)
    return BucketKey(
        step.kind, step.axes, step.reduction, dtype_of(op.operand), methods, flow.height(op), backward, parts
    )


def _methods(op: CollectiveOp, step: Step, cluster: Cluster | None) -> tuple[Method, ...]:
    """Return the ways to carry out a bucket with an op: all if the op has its own cheapest one, else only its own."""
    if op.method is None:
        return ()
    own = op.method.data
    known = methods_for(cluster, step, shape_of(op.operand)) if cluster is not None else (own,)
    is_cheapest = cluster is None or own == cheapest_method(cluster, step, value_bytes(op.operand), known)
    return known if is_cheapest else (own,)


def plan_inner(traffic: BucketTraffic) -> list[Bucket]:
    """
    Start each collective between other ops once its operand is there, if there is work until its first use.

    One joins another only if that leaves the other at least half of its time, and no part of a value another one, from
    which it was cut to be sent by itself. What holds memory meanwhile starts no earlier than it has to; numbers start
    at once, so that no rank waits for another that is late.
    """
    flow = traffic.flow

    def joins(group: Sequence[CollectiveOp], op: CollectiveOp) -> bool:
        if not parts_of_one(op).isdisjoint(group):
            return False
        first, used = flow.ready(group[0]), min(map(flow.first_use, group))
        return traffic.fits(group, op) and flow.ready(op) <= (first + used) / 2

    ops = [op for op in flow.of(CollectiveRole.INNER) if flow.has_work(flow.ready(op), flow.first_use(op))]
    ops.sort(key=lambda op: flow.ready(op))

    def start(group: Sequence[CollectiveOp]) -> int:
        ready = flow.ready(group[-1])
        return ready if all(map(is_number, group)) else max(ready, traffic.latest_start(group))

    return [traffic.bucket(group, start(group)) for group in traffic.grouped(ops, joins)]


def plan_arguments(traffic: BucketTraffic, prefetch: int) -> list[Bucket]:
    """
    Gather whole blocks of the model, each started up to `prefetch` turns before its own.

    A bucket has the arguments of one block, or of several while they are smaller than the limit. A turn is that
    of one bucket, or of several of different keys in a row. A gather in several steps starts earlier for each.
    """
    flow = traffic.flow
    names = {given.argument: given.name for given in flow.view.inputs}
    ops = sorted(flow.of(CollectiveRole.ARGUMENTS), key=flow.first_use)
    blocks = {op: _block(names[_argument(op)]) for op in ops}

    def joins(group: Sequence[CollectiveOp], op: CollectiveOp) -> bool:
        return blocks[op] == blocks[group[-1]] or traffic.fits(group, op)

    groups = sorted(traffic.grouped(ops, joins), key=lambda group: flow.first_use(group[0]))
    keys = [traffic.keys[group[0]] for group in groups]
    turns = _turns(keys)
    begins: dict[int, int] = {}
    for group, turn in zip(groups, turns, strict=True):
        begins.setdefault(turn, flow.first_use(group[0]) - 1)
    ahead = [turn - prefetch * (key.height + 1) for turn, key in zip(turns, keys, strict=True)]
    return [
        traffic.bucket(group, max(begins.get(turn, -1), traffic.latest_start(group)))
        for group, turn in zip(groups, ahead, strict=True)
    ]


def _turns(keys: Sequence[BucketKey]) -> list[int]:
    """The turn of each bucket: a new one where a key comes again, or backward begins."""
    turns: list[int] = []
    seen: set[BucketKey] = set()
    for key in keys:
        if key in seen or any(other.backward != key.backward for other in seen):
            seen.clear()
        turns.append((turns[-1] if turns else 0) + (not seen and bool(turns)))
        seen.add(key)
    return turns


def _argument(op: Operation) -> BlockArgument:
    """The argument that a collective of the role ARGUMENTS brings into another form."""
    value = op.operands[0]
    while isinstance(value, OpResult):
        value = value.op.operands[0]
    assert isinstance(value, BlockArgument)
    return value


def _block(name: str) -> tuple[str, ...]:
    """The block of the model that an argument belongs to: `h.0` for `h.0.attn.q.weight`, `wte` for `wte.weight`."""
    parts = tuple(name.split("."))
    numbered = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return parts[: max(numbered, 0) + 1]
