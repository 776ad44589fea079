"""Tensors cut along a dim and put together again, and several of them in one flat buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

Sizes = tuple[int, ...]

_PACK_BELOW_BYTES = 32 * 1024
"""Below this mean size, copying pieces into one message is cheaper than sending them one by one."""


def piece_shape(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """`shape` with another size along `dim`."""
    return (*shape[:dim], size, *shape[dim + 1 :])


def flatten(tensors: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """
    The elements of all `tensors`, one after another, in a flat buffer of `length` (the rest is arbitrary).

    One contiguous tensor that fills the buffer is returned as a view of itself.
    """
    if len(tensors) == 1 and tensors[0].numel() == length and tensors[0].is_contiguous():
        return tensors[0].view(-1)
    flat = tensors[0].new_empty(length)
    for view, tensor in zip(unflatten(flat, [t.shape for t in tensors]), tensors, strict=True):
        view.copy_(tensor)
    return flat


def unflatten(flat: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Views of a flat buffer as tensors of `shapes`, one after another."""
    views: list[torch.Tensor] = []
    start = 0
    for shape in shapes:
        count = math.prod(shape)
        views.append(flat[start : start + count].view(shape))
        start += count
    return views


def packs(pieces: Sequence[torch.Tensor]) -> bool:
    """Whether pieces travel in one message: sender and receiver decide alike, from what both know."""
    return len(pieces) > 1 and sum(piece.nbytes for piece in pieces) < _PACK_BELOW_BYTES * len(pieces)


def messages(pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What to send for contiguous pieces: each by itself, or one message with copies of all; empty ones need none."""
    pieces = [piece for piece in pieces if piece.numel()]
    return [flatten(pieces, sum(piece.numel() for piece in pieces))] if packs(pieces) else pieces


class Mail:
    """What `messages` arrive in."""

    def __init__(self) -> None:
        self._packed: list[tuple[torch.Tensor, list[torch.Tensor]]] = []

    def expect(self, slots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Where to receive the messages with pieces for `slots`, contiguous tensors."""
        slots = [slot for slot in slots if slot.numel()]
        if not packs(slots):
            return slots
        flat = slots[0].new_empty(sum(slot.numel() for slot in slots))
        self._packed.append((flat, slots))
        return [flat]

    def unpack(self) -> None:
        """Put what has arrived in its slots."""
        for flat, slots in self._packed:
            for view, slot in zip(unflatten(flat, [s.shape for s in slots]), slots, strict=True):
                slot.copy_(view)


class Assembly:
    """
    A tensor put together from parts along a dim, as they arrive.

    Where the parts are contiguous blocks of the whole they arrive in their places; otherwise `whole` joins
    them.

    Args:
        like: gives dtype, device and the sizes along the other dims.
        dim: the dim to put parts together along.
        sizes: the size of each part along it.
    """

    def __init__(self, like: torch.Tensor, dim: int, sizes: Sizes) -> None:
        self._dim = dim
        self._whole: torch.Tensor | None = None
        if math.prod(like.shape[:dim]) == 1:
            self._whole = like.new_empty(piece_shape(like.shape, dim, sum(sizes)))
            self.slots = list(self._whole.split(sizes, dim))
        else:
            self.slots = [like.new_empty(piece_shape(like.shape, dim, size)) for size in sizes]

    def put(self, part: int, value: torch.Tensor) -> None:
        """Set a part that is already here."""
        if self._whole is None:
            self.slots[part] = value
        else:
            self.slots[part].copy_(value)

    def whole(self) -> torch.Tensor:
        """The tensor, once all parts are there."""
        return torch.cat(self.slots, self._dim) if self._whole is None else self._whole
