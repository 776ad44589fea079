"""
The memory that a step function holds on each rank, op by op: liveness over the scheduled program.

Arguments are alive throughout, in their home. A result is alive from the op that produces it (for a started collective,
from its start) to the last use of any value that shares its memory; a `spmd.free` stands at this point and changes
nothing. Views allocate no memory. An op that can overwrite an operand (an update, a sum, an all-reduce) does so if
nothing else needs the operand's memory. A fragment holds its results, which are sums over the parts, from its first op
on, and operands from outside it to its end. A stage of a pipeline holds the parts that its schedule has in flight.
Collectives also hold the buffers they send and receive (`collective_memory`). Work space inside a kernel is not
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects.compute import element_bytes, shape_of
from ...dialects.pipe import FragmentOp
from ...dialects.staged import Stages
from ...dialects.step import sharding_of
from ...ir.mesh import Mesh
from ...ir.sharding import DimSharding, Sharding
from ..step.step_view import value_label
from .liveness import Buffer, Bytes, bytes_over_time, in_blocks, live_buffers
from .memory_events import Run, Staging, ValueInPart, run_of, sent_values
from .memory_roles import MemoryRole, Roles

_LISTED = 8
"""Number of the largest values that a peak names."""


@dataclass(frozen=True)
class AliveValue:
    """A value whose memory is held at a peak, and its bytes on the rank of the peak."""

    name: str
    bytes: int


@dataclass(frozen=True)
class MemoryPeak:
    """
    The most bytes that each rank holds at any time.

    The other fields describe the peak of `rank`: `op` is the op during which it occurs, `alive` the largest values
    held, largest first, and `by_role` the bytes of each role.
    """

    by_rank: tuple[int, ...]
    rank: int
    op: Operation
    alive: tuple[AliveValue, ...]
    by_role: Mapping[MemoryRole, int]

    @property
    def bytes(self) -> int:
        """Return the peak on `rank`."""
        return self.by_rank[self.rank]


@dataclass(frozen=True)
class MemoryUse:
    """
    The memory of the ranks of a mesh over a step. Ranks that hold the same bytes are one class, with one column.

    Args:
        size: function from a value to its bytes for each class.
        held: bytes of all `buffers`, for each event of `run` (rows) and class (columns).
        columns: class of each rank.
    """

    run: Run
    buffers: tuple[Buffer, ...]
    size: Callable[[Hashable], Bytes]
    held: Bytes
    columns: NDArray[np.intp]

    def alive(self, index: int, rank: int) -> list[tuple[Hashable, int]]:
        """Return the values held during the event of `index`, each with its bytes on `rank`."""
        held = (buffer.value for buffer in self.buffers if buffer.is_held(index))
        return [(value, int(self.size(value)[self.columns[rank]])) for value in held]

    def over_time(self, rank: int) -> Bytes:
        """Return the bytes held on a rank during each event."""
        return self.held[:, self.columns[rank]]


def memory_use(func: FuncOp, mesh: Mesh, stage: int | None = None, blocks: Sequence[float] = ()) -> MemoryUse:
    """
    Return the memory use of every rank of `mesh`; for a stage of a pipeline, `mesh` is the mesh of `stage`.

    Args:
        blocks: for each rank of the mesh, the bytes that its allocations are multiples of; by default there are none.
    """
    stages = Stages(func)
    arguments = [value for value in func.body.block.args if stage is None or stages.of_value(value) == stage]
    run = run_of(func, stage)
    buffers = live_buffers(run.events, arguments, kept=sent_values(func, stage, stages)).listed
    ranks, columns = _alike({value_of(buffer.value) for buffer in buffers}, mesh, blocks)
    size = _sizes(mesh, ranks, [blocks[rank] for rank in ranks] if blocks else ())
    return MemoryUse(run, buffers, size, bytes_over_time(buffers, len(run.events), len(ranks), size), columns)


def _alike(values: Iterable[SSAValue], mesh: Mesh, blocks: Sequence[float]) -> tuple[list[int], NDArray[np.intp]]:
    """Return the first rank of each class, whose parts of all values have equal sizes, and the class of each rank."""
    splits = {split: None for value in values for split in zip(shape_of(value), sharding_of(value).dims, strict=True)}
    forms = dict.fromkeys(_forms(size, dim, mesh) for size, dim in splits if dim.axes)
    keys = zip(*filter(None, (tuple(blocks) or (0.0,) * mesh.device_count, *forms)), strict=True)
    numbers: dict[tuple[float, ...], int] = {}
    columns = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.intp)
    return [int(rank) for rank in np.unique(columns, return_index=True)[1]], columns


@lru_cache(maxsize=4096)
def _forms(size: int, dim: DimSharding, mesh: Mesh) -> tuple[int, ...] | None:
    """Number the ranks by the sizes of their parts of a dim; return None where all parts have one size."""
    extents = np.diff(dim.boundaries(size, mesh))[_parts(mesh, dim.axes)]
    if (extents == extents[:1]).all():
        return None
    return tuple(np.unique(extents, axis=0, return_inverse=True)[1].ravel().tolist())


def peak_memory(
    func: FuncOp,
    mesh: Mesh,
    limits: Sequence[float] | None = None,
    stage: int | None = None,
    blocks: Sequence[float] = (),
    roles: Roles | None = None,
) -> MemoryPeak:
    """
    Return the peak of every rank of `mesh`, in bytes; `stage` and `blocks` are as in `memory_use`.

    The details describe the rank with the largest peak or, if `limits` of the ranks are passed, the rank that exceeds
    its limit by most or comes closest to it.

    Args:
        roles: the roles of the function's values, if they are known.
    """
    use = memory_use(func, mesh, stage, blocks)
    peaks = use.held.max(axis=0)[use.columns]
    rank = int(np.argmax(peaks - np.asarray(limits if limits is not None else 0)))
    index = int(np.argmax(use.over_time(rank)))
    alive = sorted(use.alive(index, rank), key=lambda held: -held[1])
    listed = tuple(AliveValue(_label(held), size) for held, size in alive[:_LISTED])
    roles, by_role = roles if roles is not None else Roles(func), dict.fromkeys(MemoryRole, 0)
    for held, size in alive:
        by_role[role_of(held, roles)] += size
    return MemoryPeak(tuple(peaks.tolist()), rank, use.run.ops[index], listed, by_role)


def role_of(held: Hashable, roles: Roles) -> MemoryRole:
    """Return the role of the memory of a buffer."""
    return MemoryRole.BUFFERS if isinstance(held, Staging) else roles.of(value_of(held))


def _label(held: Hashable) -> str:
    if isinstance(held, Staging):
        return f"a buffer for {_label(held.value)}"
    return value_label(value_of(held))


def value_of(held: Hashable) -> SSAValue[Attribute]:
    """Return the value in the IR that a buffer belongs to: it holds all or one part of the value, or moves it."""
    if isinstance(held, Staging):
        return value_of(held.value)
    return held.value if isinstance(held, ValueInPart) else cast("SSAValue[Attribute]", held)


def _sizes(mesh: Mesh, ranks: list[int], blocks: Sequence[float]) -> Callable[[Hashable], Bytes]:
    """Return the function from the value of a buffer to its bytes on some ranks, in blocks of their allocators."""

    @cache
    def by_part(value: SSAValue) -> Bytes:
        return local_bytes_by_part(shape_of(value), element_bytes(value), sharding_of(value), mesh)[ranks]

    @cache
    def size_of(value: SSAValue, part: int | None, share: float) -> Bytes:
        parts = by_part(value)
        if part is not None:
            held = parts[:, part]
        else:
            held = parts.sum(axis=1) if isinstance(value.owner, FragmentOp) else parts.max(axis=1)
        return in_blocks((held * share).astype(np.int64), blocks)

    def size(held: Hashable) -> Bytes:
        share, held = (held.share, held.value) if isinstance(held, Staging) else (1, held)
        value = value_of(held)
        part = held.part if isinstance(held, ValueInPart) and held.part < by_part(value).shape[1] else None
        return size_of(value, part, share)

    return size


@lru_cache(maxsize=65536)
def local_bytes_by_part(shape: tuple[int, ...], element_bytes: int, sharding: Sharding, mesh: Mesh) -> Bytes:
    """Return the bytes of a value of global `shape` on each rank (rows), by part of the temporal axes that split it."""
    local = np.full((mesh.device_count, 1), element_bytes, np.int64)
    for size, dim in zip(shape, sharding.dims, strict=True):
        local = local * np.diff(dim.boundaries(size, mesh))[_parts(mesh, dim.axes)]
    return local


@lru_cache(maxsize=1024)
def _parts(mesh: Mesh, axes: tuple[str, ...]) -> Bytes:
    """Return the part of a dim split along `axes` that each rank (rows) holds, by part of the temporal axes in it."""
    sizes = [axis.size for axis in mesh.spatial]
    places = np.unravel_index(np.arange(mesh.device_count), sizes) if sizes else ()
    coordinates = dict(zip((axis.name for axis in mesh.spatial), places, strict=True))
    numbers = np.zeros((mesh.device_count, 1), np.int64)
    for name in axes:
        size = mesh.axis(name).size
        place = coordinates[name][:, np.newaxis, np.newaxis] if name in coordinates else np.arange(size)
        numbers = (numbers[:, :, np.newaxis] * size + place).reshape(mesh.device_count, -1)
    return numbers


def roles_text(by_role: Mapping[MemoryRole, int]) -> str:
    """Return the parts of a peak, for messages: `parameters 1.50 GiB, activations 20.00 MiB`."""
    return ", ".join(f"{role} {size_text(size)}" for role, size in by_role.items() if size)


def size_text(count: float) -> str:
    """Return a number of bytes, for messages: `1.50 GiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} bytes"
