"""Parts of the batch, one after the other on one rank: a part of a full value, and the sum over all parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ir.sharding import even_offsets
from .pieces import Sizes

_IN_PLACE = {
    "sum": torch.Tensor.add_,
    "max": lambda total, part: torch.maximum(total, part, out=total),
    "min": lambda total, part: torch.minimum(total, part, out=total),
}


def part_of(x: torch.Tensor, dim: int, part: int, parts: int | Sizes) -> torch.Tensor:
    """Part number `part` of `x` along `dim`, contiguous; `parts` are how many there are, or their sizes."""
    if isinstance(parts, int):
        offsets = even_offsets(x.shape[dim], parts)
        start, end = offsets[part], offsets[part + 1]
    else:
        start = sum(parts[:part])
        end = start + parts[part]
    return x.narrow(dim, start, end - start).contiguous()


def accumulate(totals: list[Any], parts: Sequence[torch.Tensor], how: Sequence[str] | None = None) -> list[Any]:
    """
    What the parts so far give together.

    Args:
        totals: what those before gave; nothing for the first. Its tensors are written to.
        parts: what this part gives, in memory that nothing else uses.
        how: for each, whether the parts are reduced (``sum``, ``max`` or ``min``) or kept (``list``); by default all
            are summed.
    """
    kinds = how if how is not None else ("sum",) * len(parts)
    if not totals:
        return [[part] if kind == "list" else part for part, kind in zip(parts, kinds, strict=True)]
    for total, part, kind in zip(totals, parts, kinds, strict=True):
        if isinstance(total, list):
            total.append(part)
        else:
            _IN_PLACE[kind](total, part)
    return totals
