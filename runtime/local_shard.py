"""`LocalShard`: a rank's part of a value, and its place in the full tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch

from .plan import PlanError


@dataclass(frozen=True)
class LocalShard:
    """
    This rank's part of a value, which may be split in ways that a `DTensor` cannot represent.

    Args:
        local: the part, in the step's own memory; empty if the rank holds nothing.
        shape: shape of the full tensor.
        offsets: start of the part in the full tensor, by dim.
    """

    local: torch.Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """The slices of the full tensor that equal `local`: ``full[shard.slices]``."""
        sizes = zip(self.offsets, self.local.shape, strict=True)
        return tuple(slice(start, start + size) for start, size in sizes)

    def __create_write_items__(self, name: str, _: object) -> NoReturn:
        """Raise a PlanError: torch.distributed.checkpoint calls this to save, and would save only one rank's part."""
        raise PlanError(
            f"{name!r} is split unevenly over the ranks, which torch.distributed.checkpoint cannot save: use "
            "step.save(folder), which can, or save step.state_dict(), which has full tensors"
        )
