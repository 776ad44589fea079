"""
Rows of several lists by their places: tokens on the way to their experts and back, each sequence by itself.

Places ``[p, n]`` count from the begin of their own list, of which there are p; they are not checked against its length.
A row is moved as one block: torch's `gather` and `scatter_add`, which take a place for each element, need many times as
long on a CPU.

`part` is where the rows of the lists that are here start and stop among how many; None where they are all.
"""

from __future__ import annotations

import torch

from .indexed import Part, within


def take_rows(rows: torch.Tensor, places: torch.Tensor, *, part: Part | None = None) -> torch.Tensor:
    """The row of its list at each place, ``[p, n, f]``; zero for one that is not here. `rows` are ``[p, t, f]``."""
    local, held = (places, None) if part is None else within(places, part)
    found = rows.flatten(0, 1).index_select(0, _joined(local, rows.size(1)))
    if held is not None:
        found.masked_fill_(~held.view(-1, 1), 0)
    return found.view(*places.shape, rows.size(2))


def add_rows(values: torch.Tensor, places: torch.Tensor, size: int, *, part: Part | None = None) -> torch.Tensor:
    """Lists of `size` rows, ``[p, size, f]``, each the sum of the values ``[p, n, f]`` at its place."""
    length = size
    if part is not None:
        length = part[1] - part[0]
        places, held = within(places, part)
        values = values.masked_fill(~held.unsqueeze(2), 0)
    sums = values.new_zeros(len(values) * length, values.size(2))
    sums.index_add_(0, _joined(places, length), values.flatten(0, 1))
    return sums.view(len(values), length, values.size(2))


def _joined(places: torch.Tensor, length: int) -> torch.Tensor:
    """Places in lists of `length` rows as places in the one list of all their rows, ``[p * n]``."""
    if len(places) > 1:
        places = places + length * torch.arange(len(places), device=places.device).unsqueeze(1)
    return places.flatten()
