"""
Direct exchanges: every rank of a group sends to each other what that one needs, all at once.

Measured on gloo, where it is about twice as fast as the library's all_gather, reduce_scatter and all_to_all:
those copy into staging buffers (gloo's reduce_scatter is an all_reduce in disguise), while a block that is
contiguous travels from its place to its place. Parts of different sizes need no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .groups import Group
from .pieces import flatten, unflatten

# Below this mean size, copying pieces into one message is cheaper than sending them one by one.
_PACK_BELOW_BYTES = 32 * 1024


class Exchange:
    """
    The messages between this rank and each other one of a group, all started by the constructor.

    Args:
        group: who takes part.
        outgoing: for each part, the contiguous pieces to send it. They must not change before `wait`.
        incoming: for each part, the contiguous tensors that its pieces arrive in.
    """

    def __init__(
        self,
        group: Group,
        outgoing: Sequence[Sequence[torch.Tensor]],
        incoming: Sequence[Sequence[torch.Tensor]],
    ) -> None:
        self._works: list[Any] = []
        self._unpack: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        # Buffers of messages under way have to outlive them.
        self._sent: list[torch.Tensor] = []
        handle, wire = group.handle, group.wire
        assert handle is not None
        for step in range(1, group.size):
            source, target = (group.part - step) % group.size, (group.part + step) % group.size
            for message in self._receivers(incoming[source]):
                self._works.append(handle.recv([message], wire[source], 0))
            for message in _messages(outgoing[target]):
                self._sent.append(message)
                self._works.append(handle.send([message], wire[target], 0))

    def _receivers(self, slots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        slots = [slot for slot in slots if slot.numel()]
        if not _packs(slots):
            return slots
        flat = slots[0].new_empty(sum(slot.numel() for slot in slots))
        self._unpack.append((flat, slots))
        return [flat]

    def wait(self) -> None:
        """Block until everything has been sent and has arrived."""
        for work in self._works:
            work.wait()
        for flat, slots in self._unpack:
            for view, slot in zip(unflatten(flat, [s.shape for s in slots]), slots, strict=True):
                slot.copy_(view)


def _messages(pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    pieces = [piece for piece in pieces if piece.numel()]
    return [flatten(pieces, sum(piece.numel() for piece in pieces))] if _packs(pieces) else pieces


def _packs(pieces: list[torch.Tensor]) -> bool:
    """Sender and receiver decide alike, from what both know."""
    return len(pieces) > 1 and sum(piece.nbytes for piece in pieces) < _PACK_BELOW_BYTES * len(pieces)
