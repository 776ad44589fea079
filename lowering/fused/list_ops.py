"""
Rows of lists by their places: ops that stand for the runtime's functions of the same names.

Several lists of rows, ``[p, t, f]``, are looked up each by itself: places ``[p, n]`` count from the begin of their own
list. These are the definitions that an interpreter runs and that the runtime's functions are tested against.

`part` is where the rows of the lists that are here start and stop among how many; None where they are all.
"""

from __future__ import annotations

import torch

from .fused_op import FusedOp

Part = tuple[int, int, int]


def take_rows(rows: torch.Tensor, places: torch.Tensor, *, part: Part | None = None) -> torch.Tensor:
    """The row of its list at each place, ``[p, n, f]``; zero for one that is not here."""
    local, here = _local(places, rows.shape[1], part)
    found = rows[torch.arange(len(rows), device=rows.device).unsqueeze(1), local]
    return torch.where(here.unsqueeze(2), found, 0)


def add_rows(values: torch.Tensor, places: torch.Tensor, size: int, *, part: Part | None = None) -> torch.Tensor:
    """Lists of `size` rows, ``[p, size, f]``, each the sum of the values ``[p, n, f]`` at its place."""
    length = size if part is None else part[1] - part[0]
    local, here = _local(places, length, part)
    sums = values.new_zeros(len(values), length, values.shape[2])
    lists = torch.arange(len(values), device=values.device).unsqueeze(1)
    return sums.index_put((lists, local), torch.where(here.unsqueeze(2), values, 0), accumulate=True)


OPS = (FusedOp(take_rows), FusedOp(add_rows))


def _local(places: torch.Tensor, length: int, part: Part | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Places among the rows that are here, and whether each is: if not, the place is another's."""
    local = places if part is None else places - part[0]
    here = (local >= 0) & (local < length)
    return torch.where(here, local, 0) if part is not None else local, here
