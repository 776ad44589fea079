"""Which collectives share a bucket, and when the buckets start."""

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
"""Whether a collective may join a group of collectives with the same key."""


@dataclass(frozen=True)
class BucketKey:
    """
    The properties that all collectives of a bucket have in common.

    `methods` are the methods that can carry out the bucket; the cheapest for its size is used. For collectives that
    bring arguments into other shardings, `height` counts the steps still to come, and `backward` distinguishes backward
    from forward. `parts` says whether the collectives are micro-batched.
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
        start: position, in an `OpFlow`, of the op that they start after; -1 to start before all ops.
        methods: the methods that can carry them out.
    """

    members: tuple[CollectiveOp, ...]
    start: int
    methods: tuple[Method, ...]


class BucketTraffic:
    """The bytes and bucket keys of the collectives of a flow, and the times of the ops that can overlap with them."""

    def __init__(self, flow: OpFlow, cluster: Cluster | None, bucket_bytes: float | None) -> None:
        self.flow = flow
        parts = fused_parts(flow.view.func)
        self.times = ComputeTimes([*flow.body, *flow.updates], cluster, bucket_bytes, parts)
        collectives = [op for role in CollectiveRole for op in flow.of(role)]
        self.bytes = {op: communication_of(op, flow.mesh).whole_bytes for op in collectives}
        self.keys = {op: _key(op, flow, cluster) for op in collectives}
        self._limits: dict[CollectiveOp, float] = {}

    def size(self, ops: Iterable[CollectiveOp]) -> float:
        """Return the total bytes of `ops`, as `Communication` counts them."""
        return sum(self.bytes[op] for op in ops)

    def fits(self, group: Sequence[CollectiveOp], op: CollectiveOp) -> bool:
        """Return whether `op` fits into a bucket of `group`."""
        return self.size((*group, op)) <= self._limit(op)

    def _limit(self, op: CollectiveOp) -> float:
        """
        Return the bytes of a bucket with `op`.

        A collective over slow links that continues a bucket over fast links waits for the last operand of the bucket.
        The limit is therefore lowered to the limits of the collectives that continue `op`, scaled by their bytes.
        """
        if op not in self._limits:
            key = self.keys[op]
            limit = self.times.bucket_bytes(key.kind, key.axes)
            following = (other for other in self.flow.continued_by(op) if self.bytes.get(other))
            of_others = (self._limit(other) * self.bytes[op] / self.bytes[other] for other in following)
            self._limits[op] = min((limit, *of_others))
        return self._limits[op]

    def latest_start(self, group: Sequence[CollectiveOp]) -> int:
        """
        Return the last position where `group` may start and still be complete in time; -1 if times are unknown.

        Each step that is still to come is given as much time as this one.
        """
        key, use = self.keys[group[0]], min(map(self.flow.first_use, group))
        return self.times.latest_start(key.kind, key.axes, self.size(group), use, steps=key.height + 1)

    def bucket(self, group: Sequence[CollectiveOp], start: int) -> Bucket:
        """Return the bucket of a group, to start after the op at a position."""
        return Bucket(tuple(group), start, self.keys[group[0]].methods)

    def grouped(self, ops: Iterable[CollectiveOp], joins: Joins) -> list[list[CollectiveOp]]:
        """Put each of `ops`, in order, into the latest group of its key if it `joins` that group, or into a new one."""
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
    """Return the methods for a bucket with `op`: all if the op has its own cheapest method, else only its method."""
    if op.method is None:
        return ()
    own = op.method.data
    methods = methods_for(cluster, step, shape_of(op.operand)) if cluster is not None else (own,)
    is_cheapest = cluster is None or own == cheapest_method(cluster, step, value_bytes(op.operand), methods)
    return methods if is_cheapest else (own,)


def plan_inner(traffic: BucketTraffic) -> list[Bucket]:
    """
    Start each collective between other ops once its operand is computed, if ops before its first use can hide it.

    A collective joins a bucket only if the first collective of the bucket keeps at least half of its time, and never
    joins another part of the same value, because `chunk-collectives` separated them. Collectives that hold memory start
    as late as possible. Collectives on a few numbers start at once, so that no rank waits for a late one.
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
    Gather whole blocks of the model, each started up to `prefetch` turns before its own turn.

    A bucket has the arguments of one block, or of several while it is smaller than the limit. A turn belongs to one
    bucket, or to consecutive buckets with different keys. A gather in several steps starts earlier for each step.
    """
    flow = traffic.flow
    names = {item.argument: item.name for item in flow.view.inputs}
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
    turns: list[int] = []
    seen: set[BucketKey] = set()
    for key in keys:
        if key in seen or any(other.backward != key.backward for other in seen):
            seen.clear()
        turns.append((turns[-1] if turns else 0) + (not seen and bool(turns)))
        seen.add(key)
    return turns


def _argument(op: Operation) -> BlockArgument:
    value = op.operands[0]
    while isinstance(value, OpResult):
        value = value.op.operands[0]
    assert isinstance(value, BlockArgument)
    return value


def _block(name: str) -> tuple[str, ...]:
    """Return the block of the model that has an argument: `h.0` for `h.0.attn.q.weight`, `wte` for `wte.weight`."""
    parts = tuple(name.split("."))
    numbered = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return parts[: max(numbered, 0) + 1]
