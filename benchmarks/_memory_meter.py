"""
`MemoryMeter`: the bytes of tensors that a rank holds while it computes, for those who want to see a plan's peak.

It counts memory by the tensor: every storage that an operation gives is counted once, from there until nothing looks at
it any more. Work space that a kernel takes and gives back by itself is no tensor; on a GPU torch's own counters say
what the allocator holds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class MemoryMeter(TorchDispatchMode):
    """
    Counts the bytes of tensors made while it is entered, with those that are `held` from before.

    Args:
        held: tensors that count from the start.
        lent: tensors whose memory is somebody else's: neither they nor views of them count.
    """

    def __init__(self, held: Iterable[torch.Tensor] = (), lent: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.bytes = 0
        """Held now."""
        self.peak = 0
        """The most that was held at any time, in bytes."""
        self.peak_op = ""
        """The operation that made the peak, as torch names it: `aten.mm.default`."""
        self._known: dict[int, int] = {}
        for tensor in lent:
            self._enter(tensor.untyped_storage(), 0)
        for tensor in held:
            self._note(tensor, "held from before")

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operation and count what it gives."""
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor, str(func))
        return result

    def _note(self, tensor: torch.Tensor, op: str) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        self._enter(storage, storage.nbytes())
        if self.bytes > self.peak:
            self.peak, self.peak_op = self.bytes, op

    def _enter(self, storage: torch.UntypedStorage, size: int) -> None:
        if storage._cdata in self._known:
            return
        self._known[storage._cdata] = size
        self.bytes += size
        weakref.finalize(storage, self._gone, storage._cdata).atexit = False

    def _gone(self, key: int) -> None:
        self.bytes -= self._known.pop(key)
