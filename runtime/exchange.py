"""
Direct exchanges: every rank of a group sends to each other what that one needs, all at once.

Measured on gloo, where it is about twice as fast as the library's all_gather, reduce_scatter and all_to_all:
those copy into staging buffers (gloo's reduce_scatter is an all_reduce in disguise), while a block that is
contiguous travels from its place to its place. Parts of different sizes need no padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .groups import RankGroup
from .pieces import ReceiveBuffers, message, parcels
from .requests import Waitable


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
        group: RankGroup,
        outgoing: Sequence[Sequence[torch.Tensor]],
        incoming: Sequence[Sequence[torch.Tensor]],
    ) -> None:
        self._works: list[Waitable] = []
        self._mail = ReceiveBuffers()
        # Buffers of messages under way have to outlive them.
        self._sent: list[torch.Tensor] = []
        handle, wire = group.handle, group.wire
        assert handle is not None
        for step in range(1, group.size):
            source, target = (group.part - step) % group.size, (group.part + step) % group.size
            for parcel in parcels(incoming[source]):
                self._works.append(handle.recv([self._mail.expect(parcel)], wire[source], 0))
            for parcel in parcels(outgoing[target]):
                self._sent.append(message(parcel))
                self._works.append(handle.send([self._sent[-1]], wire[target], 0))

    def wait(self) -> None:
        """Block until everything has been sent and has arrived."""
        for work in self._works:
            work.wait()
        self._mail.unpack()
