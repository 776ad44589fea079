"""
Define reads and sums of rows in several lists by index.

There are several lists of rows, ``[p, t, f]``; the indices `places`, ``[p, n]``, count from the begin of their list.
The interpreter runs these definitions, and the runtime's functions of the same names are tested against them.

`part` is (start, stop, all rows) of the shard of each list, or None if the rows are not split.
"""

from __future__ import annotations

import torch

from .fused_op import FusedOp

Part = tuple[int, int, int]


def take_rows(rows: torch.Tensor, places: torch.Tensor, *, part: Part | None = None) -> torch.Tensor:
    """Return the row of its list at each place, ``[p, n, f]``, or zero for a row in another shard."""
    local, here = _local(places, rows.shape[1], part)
    taken = rows[torch.arange(len(rows), device=rows.device).unsqueeze(1), local]
    return torch.where(here.unsqueeze(2), taken, 0)


def add_rows(values: torch.Tensor, places: torch.Tensor, size: int, *, part: Part | None = None) -> torch.Tensor:
    """Return lists of `size` rows, ``[p, size, f]``, each the sum of the values ``[p, n, f]`` with its place."""
    length = size if part is None else part[1] - part[0]
    local, here = _local(places, length, part)
    sums = values.new_zeros(len(values), length, values.shape[2])
    lists = torch.arange(len(values), device=values.device).unsqueeze(1)
    return sums.index_put((lists, local), torch.where(here.unsqueeze(2), values, 0), accumulate=True)


OPS = (FusedOp(take_rows), FusedOp(add_rows))


def _local(places: torch.Tensor, length: int, part: Part | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the local places, and whether each is in this shard (if not, the place is arbitrary)."""
    local = places if part is None else places - part[0]
    here = (local >= 0) & (local < length)
    return torch.where(here, local, 0) if part is not None else local, here
