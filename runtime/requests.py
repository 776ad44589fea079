"""A collective call as data, with checks and defaults."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Protocol

import torch

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
    offsets = even_offsets(size, parts)
    return tuple(b - a for a, b in pairwise(offsets))


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
