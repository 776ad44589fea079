"""Tensors cut along a dim and joined again, and several tensors in one flat buffer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch

from ..ir.collectives import ALONE_FROM_BYTES
from ..ir.sharding import even_offsets

Sizes = tuple[int, ...]

_PACK_BELOW_BYTES = 32 * 1024
"""The mean size of pieces below which copying them into one message is cheaper than sending them one by one."""


def piece_shape(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """Return `shape` with another size along `dim`."""
    return (*shape[:dim], size, *shape[dim + 1 :])


def count_of(shapes: Iterable[Sequence[int]]) -> int:
    """Return the number of elements of tensors of `shapes` together."""
    return sum(map(math.prod, shapes))


def flatten(tensors: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """Return a flat buffer of `length` as `packed` does, or a view of one contiguous tensor that fills the buffer."""
    if len(tensors) == 1 and tensors[0].numel() == length and tensors[0].is_contiguous():
        return tensors[0].view(-1)
    return packed(tensors, length)


def packed(tensors: Sequence[torch.Tensor], length: int | None = None) -> torch.Tensor:
    """
    Copy the elements of all `tensors`, one after another, to a flat buffer, in one operation if all are contiguous.

    Args:
        length: number of elements of the buffer, if it is to be longer than the tensors; the rest is arbitrary.
    """
    count = sum(tensor.numel() for tensor in tensors)
    flat = tensors[0].new_empty(count if length is None else length)
    if all(tensor.is_contiguous() for tensor in tensors):
        torch.cat([tensor.view(-1) for tensor in tensors], out=flat[:count])
    else:
        copy_all(unflatten(flat, [t.shape for t in tensors]), tensors)
    return flat


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source to its target of the same shape and dtype: in one operation if all are contiguous."""
    filled = [(target, source) for target, source in zip(targets, sources, strict=True) if target.numel()]
    if filled:
        into, given = zip(*filled, strict=True)
        torch._foreach_copy_(into, given)  # pyright: ignore[reportPrivateImportUsage]


def unflatten(flat: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return consecutive views of a flat buffer as tensors of `shapes`."""
    views: list[torch.Tensor] = []
    start = 0
    for shape in shapes:
        count = math.prod(shape)
        views.append(flat[start : start + count].view(shape))
        start += count
    return views


Parcel = list[torch.Tensor]
"""Pieces that travel in one message. Sender and receiver form equal parcels independently, without empty pieces."""


def parcels(pieces: Sequence[torch.Tensor]) -> list[Parcel]:
    """Put all pieces in one parcel, or each in a separate parcel if their mean size is large."""
    pieces = [piece for piece in pieces if piece.numel()]
    if sum(piece.nbytes for piece in pieces) < _PACK_BELOW_BYTES * len(pieces):
        return [pieces]
    return [[piece] for piece in pieces]


def parcels_of_bucket(pieces: Sequence[torch.Tensor]) -> list[Parcel]:
    """Put the small pieces in one parcel, and each other piece in a separate parcel, as in an all-reduce."""
    pieces = [piece for piece in pieces if piece.numel()]
    small = [piece for piece in pieces if piece.nbytes < ALONE_FROM_BYTES]
    return [*([small] if small else []), *([piece] for piece in pieces if piece.nbytes >= ALONE_FROM_BYTES)]


def message(parcel: Parcel) -> torch.Tensor:
    """Return the message for contiguous pieces: one flat copy of them, or a single piece itself."""
    return parcel[0] if len(parcel) == 1 else flatten(parcel, sum(piece.numel() for piece in parcel))


class ReceiveBuffers:
    """The buffers of incoming messages."""

    def __init__(self) -> None:
        self._packed: list[tuple[torch.Tensor, Parcel]] = []

    def expect(self, parcel: Parcel) -> torch.Tensor:
        """Return the buffer that receives the message for these contiguous tensors."""
        if len(parcel) == 1:
            return parcel[0]
        flat = parcel[0].new_empty(sum(slot.numel() for slot in parcel))
        self._packed.append((flat, parcel))
        return flat

    def unpack(self) -> None:
        """Copy the received messages to their slots."""
        for flat, parcel in self._packed:
            copy_all(parcel, unflatten(flat, [slot.shape for slot in parcel]))


class Assembly:
    """
    A tensor that is assembled from parts along a dim, as they arrive.

    If the parts are contiguous blocks of the full tensor, they are received in place; otherwise `whole` concatenates
    them.

    Args:
        like: tensor that gives dtype, device and the sizes along the other dims.
        dim: the dim along which parts are joined.
        sizes: the size of each part along the dim.
    """

    def __init__(self, like: torch.Tensor, dim: int, sizes: Sizes) -> None:
        self._dim = dim
        self._whole: torch.Tensor | None = None
        if math.prod(like.shape[:dim]) == 1:
            self._whole = like.new_empty(piece_shape(like.shape, dim, sum(sizes)))
            self.slots = list(self._whole.split(sizes, dim))
        else:
            self.slots = [like.new_empty(piece_shape(like.shape, dim, size)) for size in sizes]

    @property
    def is_in_place(self) -> bool:
        """Return whether the slots are places in the full tensor."""
        return self._whole is not None

    def whole(self) -> torch.Tensor:
        """Return the full tensor; all parts must have arrived."""
        return torch.cat(self.slots, self._dim) if self._whole is None else self._whole


def put_all(assemblies: Sequence[Assembly], part: int, tensors: Sequence[torch.Tensor]) -> None:
    """Set the parts that this rank has: a part that is not received in place becomes the slot itself."""
    targets, sources = list[torch.Tensor](), list[torch.Tensor]()
    for assembly, tensor in zip(assemblies, tensors, strict=True):
        if assembly.is_in_place:
            targets.append(assembly.slots[part])
            sources.append(tensor)
        else:
            assembly.slots[part] = tensor
    copy_all(targets, sources)


_IN_PLACE = {
    "sum": torch.Tensor.add_,
    "max": lambda total, part: torch.maximum(total, part, out=total),
    "min": lambda total, part: torch.minimum(total, part, out=total),
}


def part_of(x: torch.Tensor, dim: int, part: int, parts: int | Sizes) -> torch.Tensor:
    """Return part number `part` of `x` along `dim`, contiguous; `parts` is the number of parts, or their sizes."""
    if isinstance(parts, int):
        offsets = even_offsets(x.shape[dim], parts)
        start, end = offsets[part], offsets[part + 1]
    else:
        start = sum(parts[:part])
        end = start + parts[part]
    return x.narrow(dim, start, end - start).contiguous()


class Sums:
    """
    The results of the parts of a batch. Each part adds the same results in the same order.

    The tensors of the first part become the sums, so they must be in memory that nothing else uses.
    """

    def __init__(self) -> None:
        self._totals: list[Any] = []
        self._next = 0

    def next_part(self) -> Self:
        """Begin the next part, and return the sums."""
        self._next = 0
        return self

    def add(self, *values: torch.Tensor, how: str = "sum") -> None:
        """
        Add the next results of a part to the results of the parts before it, in place.

        Args:
            how: whether the parts are reduced (``sum``, ``max`` or ``min``) or collected (``list``).
        """
        for value in values:
            if self._next == len(self._totals):
                self._totals.append([value] if how == "list" else value)
            elif how == "list":
                self._totals[self._next].append(value)
            else:
                _IN_PLACE[how](self._totals[self._next], value)
            self._next += 1

    def totals(self) -> list[Any]:
        """Return the sums over all parts so far; collected results are lists."""
        return self._totals
