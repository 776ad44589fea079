"""Micro-batches, computed in turn on one rank: a part of a full value, and the sum over all parts."""

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
    """Return part number `part` of `x` along `dim`, contiguous; `parts` is the number of parts, or their sizes."""
    if isinstance(parts, int):
        offsets = even_offsets(x.shape[dim], parts)
        start, end = offsets[part], offsets[part + 1]
    else:
        start = sum(parts[:part])
        end = start + parts[part]
    return x.narrow(dim, start, end - start).contiguous()


def accumulate(totals: list[Any], parts: Sequence[torch.Tensor], how: Sequence[str] | None = None) -> list[Any]:
    """
    Add the results of a part to the results of the parts before it.

    Args:
        totals: results of the parts before; empty for the first part. Its tensors are overwritten.
        parts: results of this part, in memory that nothing else uses.
        how: for each result, whether the parts are reduced (``sum``, ``max`` or ``min``) or collected (``list``); by
            default all are summed.
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
