"""
What a step function holds in memory on each rank, op by op: liveness over the scheduled program.

Arguments are alive throughout, at their home. A result is alive from the op that makes it (a started
collective's from its start) to the last use of any value that looks at the same memory; a `spmd.free` stands
right there, so it changes nothing. Views make no memory. An op that can overwrite an operand does so where
nothing else needs that operand's memory: updates, a sum, an all-reduce. A fragment holds its results, sums of what its
parts yield, from its first op on, and what it takes from around it to its end. Work space inside a kernel and the
staging buffers of a collective are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import product

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ...dialects.aten import AtenOp
from ...dialects.compute import element_bytes, shape_of
from ...dialects.pipe import FragmentOp
from ...dialects.spmd import AccumulateOp, AllReduceOp, FreeOp, SliceOp, StartOp, WaitOp
from ...dialects.staged import Stages
from ...dialects.step import sharding_of
from ...dialects.train import AdamWOp, SgdOp
from ...ir.collectives import CollectiveKind
from ...ir.mesh import AxisKind, Mesh
from ...ir.sharding import Sharding
from ..search.step_view import value_label

Bytes = NDArray[np.int64]
"""Bytes by rank."""

_LISTED = 8
"""How many of the largest values a peak names."""


@dataclass(frozen=True)
class AliveValue:
    """A value whose memory is held at a peak, and its bytes on the rank concerned."""

    name: str
    bytes: int


@dataclass(frozen=True)
class MemoryPeak:
    """
    The most that each rank holds at any time, in bytes; on `rank`, where and by which values (largest first).

    `op` is the op during which the peak occurs.
    """

    by_rank: tuple[int, ...]
    rank: int
    op: Operation
    alive: tuple[AliveValue, ...]

    @property
    def bytes(self) -> int:
        """The peak on `rank`."""
        return self.by_rank[self.rank]


@dataclass
class Buffer:
    """A piece of memory: the value it was made for, and the indices of the first and last op that need it."""

    value: SSAValue
    first: int
    last: int

    @property
    def is_argument(self) -> bool:
        """Whether the memory is the caller's, and so held throughout."""
        return isinstance(self.value, BlockArgument)

    def is_held(self, index: int) -> bool:
        """Whether the memory is held during the op of `index`."""
        return self.is_argument or self.first <= index <= self.last


def peak_memory(
    func: FuncOp, mesh: Mesh, limits: Sequence[float] | None = None, stage: int | None = None
) -> MemoryPeak:
    """
    The peak of every rank of `mesh`, in bytes; of a pipeline, of what `stage` holds, whose mesh it is.

    The details are those of the rank with the largest, or, given the `limits` of the ranks, of the one that
    exceeds its own by most (or comes closest).
    """
    ops = list(_in_order(func.body.block))
    stages = Stages(func)
    buffers = [buffer for buffer in live_buffers(func) if stage is None or stages.of_value(buffer.value) == stage]
    held = bytes_over_time(buffers, len(ops), mesh)
    peaks = held.max(axis=0)
    rank = int(np.argmax(peaks - np.asarray(limits if limits is not None else 0)))
    index = int(np.argmax(held[:, rank]))
    alive = [
        AliveValue(value_label(buffer.value), int(_buffer_bytes(buffer, mesh)[rank]))
        for buffer in buffers
        if buffer.is_held(index)
    ]
    alive.sort(key=lambda value: -value.bytes)
    by_rank = tuple(int(peak) for peak in peaks)
    return MemoryPeak(by_rank, rank, ops[index], tuple(alive[:_LISTED]))


def live_buffers(func: FuncOp) -> list[Buffer]:
    """The memory that a function uses: one buffer per argument, and per result that needs its own."""
    block = func.body.block
    order = {op: index for index, op in enumerate(_in_order(block))}
    last = _last_uses(order)
    buffers = [Buffer(argument, 0, last.get(argument, 0)) for argument in block.args]
    found: dict[SSAValue, Buffer] = dict(zip(block.args, buffers, strict=True))
    for op, index in order.items():
        for position, result in enumerate(_results(op)):
            buffer = _reused(op, position, found, _end(op, order))
            if buffer is None:
                buffer = Buffer(result, _begin(op, order), index)
                buffers.append(buffer)
            buffer.last = max(buffer.last, last.get(result, index))
            found[result] = buffer
    return buffers


def _last_uses(order: Mapping[Operation, int]) -> dict[SSAValue, int]:
    """The index of the op up to which each value is needed."""
    last: dict[SSAValue, int] = {}
    for op in order:
        for value in () if isinstance(op, FreeOp) else op.operands:
            last[value] = max(last.get(value, 0), _end(_holder(op, value), order))
    return last


def _in_order(block: Block) -> Iterator[Operation]:
    """The ops of a block, a fragment after its own."""
    for op in block.ops:
        if isinstance(op, FragmentOp):
            yield from op.body.block.ops
        yield op


def _holder(op: Operation, value: SSAValue) -> Operation:
    """The op until whose end `op` needs an operand: its fragment where that takes the operand from around it."""
    parent, made = op.parent_op(), value.owner if isinstance(value.owner, Block) else value.owner.parent
    return parent if isinstance(parent, FragmentOp) and parent.body.block is not made else op


def _begin(op: Operation, order: Mapping[Operation, int]) -> int:
    """The index of the op from which the results of `op` need memory."""
    first = op.body.block.first_op if isinstance(op, FragmentOp) else None
    return order[first if first is not None else op]


def _end(op: Operation, order: Mapping[Operation, int]) -> int:
    """The index of the op up to which `op` needs its operands: a started collective does until its wait."""
    if isinstance(op, StartOp):
        return order[_wait(op)]
    return order[op]


def _wait(start: StartOp) -> Operation:
    return next(iter(start.token.uses)).operation


def _results(op: Operation) -> Iterator[SSAValue]:
    """The values for which `op` may need memory: a start makes room for what its wait gives."""
    if isinstance(op, StartOp):
        yield from _wait(op).results
    elif not isinstance(op, WaitOp):
        yield from op.results


def _reused(op: Operation, position: int, found: Mapping[SSAValue, Buffer], end: int) -> Buffer | None:
    """The buffer of an operand in which the result at `position` lies; None where it needs one of its own."""
    if isinstance(op, SliceOp) or (isinstance(op, AtenOp) and op.spec.view):
        return found[op.operands[0]]
    if (overwritten := _overwritten(op, position)) is None:
        return None
    buffer = found[op.operands[overwritten]]
    shared = sum(found.get(operand) is buffer for operand in op.operands) > 1
    lent = buffer.is_argument and not isinstance(op, SgdOp | AdamWOp)
    return None if shared or lent or buffer.last > end else buffer


def _overwritten(op: Operation, position: int) -> int | None:
    """The position of the operand over which the result at `position` may be written."""
    match op:
        case SgdOp() | AdamWOp():
            # (param, grad, *states, step, lr) -> (param, *states)
            return position + bool(position)
        case AllReduceOp() | AccumulateOp():
            return 0
        case StartOp() if op.collective is CollectiveKind.ALL_REDUCE:
            return position
        case AtenOp() if op.overload == "add.Tensor":
            return 0 if _alike(op.args[0], op.outs[0]) else None
        case _:
            return None


def _alike(value: SSAValue, other: SSAValue) -> bool:
    """Whether two values take the same room on every rank."""
    return value.type == other.type and sharding_of(value).dims == sharding_of(other).dims


def bytes_over_time(buffers: Sequence[Buffer], ops: int, mesh: Mesh) -> Bytes:
    """The bytes held during each of `ops` ops (rows) on each rank (columns)."""
    change = np.zeros((ops + 2, mesh.device_count), np.int64)
    for buffer in buffers:
        size = _buffer_bytes(buffer, mesh)
        change[buffer.first] += size
        change[-1 if buffer.is_argument else buffer.last + 1] -= size
    return change.cumsum(axis=0)[:ops]


def _buffer_bytes(buffer: Buffer, mesh: Mesh) -> Bytes:
    value = buffer.value
    parts = local_bytes_by_part(shape_of(value), element_bytes(value), sharding_of(value), mesh)
    return parts.sum(axis=1) if isinstance(value.owner, FragmentOp) else parts.max(axis=1)


@lru_cache(maxsize=65536)
def local_bytes_by_part(shape: tuple[int, ...], element_bytes: int, sharding: Sharding, mesh: Mesh) -> Bytes:
    """The bytes that each rank (rows) holds of a value of global `shape`, by part of the temporal axes of its split."""
    found = np.full((mesh.device_count, 1), element_bytes, np.int64)
    for size, dim in zip(shape, sharding.dims, strict=True):
        found = found * np.diff(dim.boundaries(size, mesh))[_parts(mesh, dim.axes)]
    return found


@lru_cache(maxsize=1024)
def _parts(mesh: Mesh, axes: tuple[str, ...]) -> Bytes:
    """Which part of a dim split along `axes` each rank (rows) holds, by part of the temporal axes among them."""
    temporal = [axis for axis in axes if mesh.axis(axis).kind is AxisKind.TEMPORAL]
    moments = [dict(zip(temporal, at, strict=True)) for at in product(*(range(mesh.axis(a).size) for a in temporal))]

    def part(rank: int, moment: Mapping[str, int]) -> int:
        place = {**mesh.coordinates(rank), **moment}
        return reduce(lambda found, axis: found * mesh.axis(axis).size + place[axis], axes, 0)

    return np.array([[part(rank, at) for at in moments] for rank in range(mesh.device_count)], np.int64)


def size_text(count: float) -> str:
    """A number of bytes for messages: `1.50 GiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} bytes"
