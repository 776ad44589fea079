"""
What a step function holds in memory on each rank, op by op: liveness over the scheduled program.

Arguments are alive throughout, at their home. A result is alive from the op that makes it (a started
collective's from its start) to the last use of any value that looks at the same memory; a `spmd.free` stands
right there, so it changes nothing. Views make no memory. An op that can overwrite an operand does so where
nothing else needs that operand's memory: updates, a sum, an all-reduce. A fragment holds its results, sums of what its
parts yield, from its first op on, and what it takes from around it to its end. A stage of a pipeline holds the parts
that its schedule has under way. Collectives hold what they send and receive beside their operands and results
(`collective_memory`). Work space inside a kernel is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
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

    `op` is the op during which the peak occurs, `by_role` its bytes by what the memory is for.
    """

    by_rank: tuple[int, ...]
    rank: int
    op: Operation
    alive: tuple[AliveValue, ...]
    by_role: Mapping[MemoryRole, int]

    @property
    def bytes(self) -> int:
        """The peak on `rank`."""
        return self.by_rank[self.rank]


@dataclass(frozen=True)
class MemoryUse:
    """
    The memory of the ranks of a mesh over a step. Ranks that hold the same are one class, which has one column.

    Args:
        size: the bytes of a value by class.
        held: the bytes by event of `run` (rows) and class (columns), of all `buffers` together.
        columns: by rank, its class.
    """

    run: Run
    buffers: tuple[Buffer, ...]
    size: Callable[[Hashable], Bytes]
    held: Bytes
    columns: NDArray[np.intp]

    def alive(self, index: int, rank: int) -> list[tuple[Hashable, int]]:
        """What is held during the event of `index`, and the bytes of each on `rank`."""
        held = (buffer.value for buffer in self.buffers if buffer.is_held(index))
        return [(each, int(self.size(each)[self.columns[rank]])) for each in held]

    def over_time(self, rank: int) -> Bytes:
        """The bytes held on a rank, by event."""
        return self.held[:, self.columns[rank]]


def memory_use(func: FuncOp, mesh: Mesh, stage: int | None = None, blocks: Sequence[float] = ()) -> MemoryUse:
    """
    What every rank of `mesh` holds; of a pipeline, of what `stage` holds, whose mesh it is.

    Args:
        blocks: by rank of the mesh, the bytes of which an allocation is a whole multiple; by default any number is.
    """
    stages = Stages(func)
    arguments = [value for value in func.body.block.args if stage is None or stages.of_value(value) == stage]
    run = run_of(func, stage)
    buffers = live_buffers(run.events, arguments, kept=sent_values(func, stage, stages)).listed
    ranks, columns = _alike({value_of(buffer.value) for buffer in buffers}, mesh, blocks)
    chosen = [blocks[rank] for rank in ranks] if blocks else ()

    def size(value: Hashable) -> Bytes:
        return in_blocks(_local_bytes(value, mesh, ranks), chosen)

    return MemoryUse(run, buffers, size, bytes_over_time(buffers, len(run.events), len(ranks), size), columns)


def _alike(values: Iterable[SSAValue], mesh: Mesh, blocks: Sequence[float]) -> tuple[list[int], NDArray[np.intp]]:
    """Return the first rank of each class, whose parts of all values have equal sizes, and the class of each rank."""
    splits = {split: None for each in values for split in zip(shape_of(each), sharding_of(each).dims, strict=True)}
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
) -> MemoryPeak:
    """
    The peak of every rank of `mesh`, in bytes; of a pipeline, of what `stage` holds, whose mesh it is; `blocks` as of
    `memory_use`.

    The details are those of the rank with the largest, or, given the `limits` of the ranks, of the one that
    exceeds its own by most (or comes closest).
    """
    use = memory_use(func, mesh, stage, blocks)
    peaks = use.held.max(axis=0)[use.columns]
    rank = int(np.argmax(peaks - np.asarray(limits if limits is not None else 0)))
    index = int(np.argmax(use.over_time(rank)))
    alive = sorted(use.alive(index, rank), key=lambda held: -held[1])
    listed = tuple(AliveValue(_label(held), size) for held, size in alive[:_LISTED])
    roles, by_role = Roles(func), dict.fromkeys(MemoryRole, 0)
    for held, size in alive:
        by_role[MemoryRole.BUFFERS if isinstance(held, Staging) else roles.of(value_of(held))] += size
    return MemoryPeak(tuple(peaks.tolist()), rank, use.run.ops[index], listed, by_role)


def _label(held: Hashable) -> str:
    """What is held, for messages."""
    if isinstance(held, Staging):
        return f"a buffer for {_label(held.value)}"
    return value_label(value_of(held))


def value_of(held: Hashable) -> SSAValue[Attribute]:
    """The value in the IR that a buffer holds, one part of it or all, or that a collective moves."""
    if isinstance(held, Staging):
        return value_of(held.value)
    return held.value if isinstance(held, ValueInPart) else cast("SSAValue[Attribute]", held)


def _local_bytes(held: Hashable, mesh: Mesh, ranks: list[int]) -> Bytes:
    """Return the bytes that a buffer takes on some ranks."""
    if isinstance(held, Staging):
        return (_local_bytes(held.value, mesh, ranks) * held.share).astype(np.int64)
    value = value_of(held)
    parts = local_bytes_by_part(shape_of(value), element_bytes(value), sharding_of(value), mesh)[ranks]
    if isinstance(held, ValueInPart) and held.part < parts.shape[1]:
        return parts[:, held.part]
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
    sizes = [axis.size for axis in mesh.spatial]
    places = np.unravel_index(np.arange(mesh.device_count), sizes) if sizes else ()
    coordinates = dict(zip((axis.name for axis in mesh.spatial), places, strict=True))
    found = np.zeros((mesh.device_count, 1), np.int64)
    for name in axes:
        size = mesh.axis(name).size
        place = coordinates[name][:, np.newaxis, np.newaxis] if name in coordinates else np.arange(size)
        found = (found[:, :, np.newaxis] * size + place).reshape(mesh.device_count, -1)
    return found


def roles_text(by_role: Mapping[MemoryRole, int]) -> str:
    """The parts of a peak, for messages: `parameters 1.50 GiB, activations 20.00 MiB`."""
    return ", ".join(f"{role} {size_text(size)}" for role, size in by_role.items() if size)


def size_text(count: float) -> str:
    """A number of bytes for messages: `1.50 GiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} bytes"
