"""
A collective call as data, with checks and defaults, and the checked mode of a communicator.

In the checked mode the ranks of the mesh compare each collective before it starts. Without it two ranks that run
different programs may exchange bytes that fit by chance, with silently wrong numbers: a shape or dtype of the same
size, or two collectives in another order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ..ir.mesh import Mesh
from ..ir.sharding import even_offsets
from .groups import Axes, RankGroup
from .pieces import Sizes, piece_shape


@dataclass(frozen=True)
class Request:
    """
    A collective on one tensor, or on several of one dtype (a bucket).

    `dim`, `sizes`, `concat_dim` and `concat_sizes` have one value for all tensors, or a tuple with a value per
    tensor.

    Args:
        kind: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``broadcast``.
        tensors: the local operands.
        dim: the dim that is gathered, scattered or, in an all-to-all, split.
        sizes: the sizes of the parts of `dim` in group order; an even split if None.
        concat_dim, concat_sizes: the same for the dim that an all-to-all joins. If it equals `dim`, the boundaries of
            the parts move, and both sizes are required: the sizes sent to each part and received from each part.
        reduction: ``sum``, ``max`` or ``min``.
        method: name of the implementation; the backend's default if None.
        root: the part whose value a broadcast sends.
        donate: the operands that an all-reduce may overwrite: all, none, or the operands at these indices.
    """

    kind: str
    tensors: tuple[torch.Tensor, ...]
    axes: Axes
    dim: int | tuple[int, ...] = 0
    sizes: Sizes | tuple[Sizes | None, ...] | None = None
    concat_dim: int | tuple[int, ...] = 0
    concat_sizes: Sizes | tuple[Sizes | None, ...] | None = None
    reduction: str = "sum"
    method: str | None = None
    root: int = 0
    donate: bool | tuple[int, ...] = False

    def __post_init__(self) -> None:
        if len({tensor.dtype for tensor in self.tensors}) != 1:
            dtypes = [str(tensor.dtype) for tensor in self.tensors]
            raise ValueError(f"{self} has tensors of dtypes {dtypes}; expected a single dtype")
        if self.moves_boundaries() and (self.sizes is None or self.concat_sizes is None):
            raise ValueError(
                f"{self} splits and joins the same dim {self.dim}; both sizes and concat_sizes are required"
            )

    def __str__(self) -> str:
        return f"{self.kind} along axes {list(self.axes)}"

    @property
    def over(self) -> str:
        """The axes, for messages."""
        return " ".join(self.axes)

    def moves_boundaries(self) -> bool:
        """Whether an all-to-all joins the dim that it splits, which moves the boundaries of parts along it."""
        return self.kind == "all_to_all" and any(map(operator.eq, self.dims(), self.concat_dims()))

    def dims(self) -> tuple[int, ...]:
        """Return `dim` for each tensor."""
        return _each(self.dim, len(self.tensors))

    def concat_dims(self) -> tuple[int, ...]:
        """Return `concat_dim` for each tensor."""
        return _each(self.concat_dim, len(self.tensors))

    def donated(self) -> Collection[int]:
        """Return the indices of the operands that may be overwritten."""
        if isinstance(self.donate, bool):
            return range(len(self.tensors)) if self.donate else ()
        return self.donate

    def gathered_sizes(self, group: RankGroup) -> list[Sizes]:
        """
        Return, for each tensor, the sizes of the parts of the joined dim.

        Raises:
            ValueError: the sizes do not agree with the local operand.
        """
        if self.kind == "all_to_all":
            dims, requested = self.concat_dims(), _each_sizes(self.concat_sizes, len(self.tensors))
        else:
            dims, requested = self.dims(), _each_sizes(self.sizes, len(self.tensors))
        result: list[Sizes] = []
        for tensor, dim, sizes in zip(self.tensors, dims, requested, strict=True):
            local = tensor.shape[dim]
            sizes = (local,) * group.size if sizes is None else sizes
            if len(sizes) != group.size or (sizes[group.part] != local and not self.moves_boundaries()):
                raise self._mismatch(group, f"dim {dim} of the operand has size {local}", sizes)
            result.append(sizes)
        return result

    def scattered_sizes(self, group: RankGroup) -> list[Sizes]:
        """
        Return, for each tensor, the sizes of the parts of the split dim.

        Raises:
            ValueError: the sizes do not agree with the operand.
        """
        result: list[Sizes] = []
        for tensor, dim, sizes in zip(
            self.tensors, self.dims(), _each_sizes(self.sizes, len(self.tensors)), strict=True
        ):
            whole = tensor.shape[dim]
            sizes = even_sizes(whole, group.size) if sizes is None else sizes
            if len(sizes) != group.size or sum(sizes) != whole:
                raise self._mismatch(group, f"dim {dim} of the operand has size {whole}", sizes)
            result.append(sizes)
        return result

    def outgoing(self, group: RankGroup) -> list[list[torch.Tensor]]:
        """Return, for each part of the group, the pieces of the operands that belong to it."""
        operands = zip(self.tensors, self.scattered_sizes(group), self.dims(), strict=True)
        split = [tensor.split(sizes, dim) for tensor, sizes, dim in operands]
        return [[pieces[part] for pieces in split] for part in range(group.size)]

    def _mismatch(self, group: RankGroup, found: str, sizes: Sizes) -> ValueError:
        return ValueError(
            f"{self}: {found} on part {group.part} of {group.size}, which does not fit parts of {list(sizes)}"
        )

    def tag(self) -> tuple[object, object]:
        """Return the options that must be equal on all ranks, and the shapes and sizes to be equal in a group."""
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_COMPARED}
        everywhere = (*options.items(), len(self.tensors), str(self.tensors[0].dtype))
        if self.moves_boundaries():
            return everywhere, self._agreeing_shapes()
        return everywhere, (self._agreeing_shapes(), self.sizes, self.concat_sizes)

    def _agreeing_shapes(self) -> list[tuple[int, ...]]:
        """Return the local shapes, with -1 for dims that may differ between parts."""
        shapes = [tuple(tensor.shape) for tensor in self.tensors]
        if self.kind == "all_gather":
            return [piece_shape(s, d, -1) for s, d in zip(shapes, self.dims(), strict=True)]
        if self.kind == "all_to_all":
            return [piece_shape(s, d, -1) for s, d in zip(shapes, self.concat_dims(), strict=True)]
        return shapes


_NOT_COMPARED = {"tensors", "sizes", "concat_sizes", "donate"}


def even_sizes(size: int, parts: int) -> Sizes:
    """Return the sizes of the parts of an even split."""
    return tuple(b - a for a, b in pairwise(even_offsets(size, parts)))


def _each(value: int | tuple[int, ...], count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else value


def _each_sizes(value: Any, count: int) -> tuple[Sizes | None, ...]:
    if value is None or all(isinstance(size, int) for size in value):
        return (value,) * count
    return value


class Waitable(Protocol):
    """The interface of torch's handle of an operation in flight."""

    def wait(self) -> object:
        """Block until the operation is complete."""


@dataclass(frozen=True)
class Pending:
    """A collective in flight: torch's handles, and the function that then computes the results."""

    works: Sequence[Waitable | None]
    finish: Callable[[], list[torch.Tensor]]

    def wait(self) -> tuple[torch.Tensor, ...]:
        """Block until the data has arrived (on CUDA: make the current stream wait), and return the results."""
        for work in self.works:
            if work is not None:
                work.wait()
        return tuple(self.finish())


class SequenceError(RuntimeError):
    """Ranks that are about to run different collectives."""


class CheckedSequence:
    """
    Counts the collectives of a program and compares each over all ranks of its mesh, before it starts.

    Args:
        everyone: group along all axes of `mesh`.
    """

    def __init__(self, mesh: Mesh, everyone: RankGroup) -> None:
        self._mesh, self._everyone = mesh, everyone
        self._count = 0

    def check(self, request: Request) -> None:
        """
        Compare the requests of all ranks.

        Raises:
            SequenceError: on every rank, if two requests differ; the message names both.
        """
        if self._everyone.size == 1:
            return
        tags_by_wire: list[Any] = [None] * self._everyone.size
        dist.all_gather_object(tags_by_wire, (*request.tag(), str(request)), self._everyone.handle)
        tags = [tags_by_wire[wire] for wire in self._everyone.wire]
        if (pair := self._difference(tags, request.axes)) is not None:
            ranks = [self._everyone.ranks[part] for part in pair]
            first, other = (f"{tags[part][2]} with {_compared(*tags[part][:2])}" for part in pair)
            raise SequenceError(
                f"collective number {self._count} differs: rank {ranks[0]} is about to start {first}, "
                f"rank {ranks[1]} {other}; the ranks run different programs"
            )
        self._count += 1

    def _difference(self, tags: list[Any], axes: Axes) -> tuple[int, int] | None:
        """Return two ranks of the mesh whose tags differ but must be equal."""
        for rank, (everywhere, _, _) in enumerate(tags):
            if everywhere != tags[0][0]:
                return 0, rank
        for group in self._mesh.groups(axes):
            for rank in group:
                if tags[rank][1] != tags[group[0]][1]:
                    return group[0], rank
        return None


def _compared(everywhere: Any, here: Any) -> str:
    *options, _, dtype = everywhere
    shapes, *sizes = here
    listed = [f"{name}={value!r}" for name, value in options if value and name not in ("kind", "axes")]
    listed += [f"sizes {list(size)}" for size in sizes if size is not None]
    return ", ".join((f"{dtype} of shapes {[list(shape) for shape in shapes]}", *listed))
