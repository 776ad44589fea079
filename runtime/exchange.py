"""
Direct exchanges: every rank of a group sends each other rank its data, all at once.

On gloo this was measured to be about twice as fast as the library's all_gather, reduce_scatter and all_to_all, which
copy into staging buffers (gloo's reduce_scatter is an all_reduce in disguise). Here a contiguous block travels directly
from its source to its destination. Parts of different sizes need no padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .groups import RankGroup
from .pieces import ReceiveBuffers, message, parcels
from .requests import Waitable


class Exchange:
    """
    The messages between this rank and every other rank of a group, all started by the constructor.

    Args:
        group: the ranks that take part.
        outgoing: the contiguous pieces to send to each part. They must not change before `wait`.
        incoming: the contiguous tensors to receive into, by the part that sends them.
    """

    def __init__(
        self,
        group: RankGroup,
        outgoing: Sequence[Sequence[torch.Tensor]],
        incoming: Sequence[Sequence[torch.Tensor]],
    ) -> None:
        self._works: list[Waitable] = []
        self._mail = ReceiveBuffers()
        # The buffers of messages in flight must outlive the messages.
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
        """Block until every message has been sent or received."""
        for work in self._works:
            work.wait()
        self._mail.unpack()
