"""
Access to rows of several lists by index: tokens on the way to their experts and back, each sequence separately.

Places ``[p, n]`` are indices into each of p lists; they are not checked against the list's length.
A row is moved as one block: torch's `gather` and `scatter_add`, which take an index per element, are many times
slower on a CPU.

`part` is (start, stop, size): the local rows of each list, and the size of the full lists; None if all rows are local.
"""

from __future__ import annotations

import torch

from .indexed import Part, within


def take_rows(rows: torch.Tensor, places: torch.Tensor, *, part: Part | None = None) -> torch.Tensor:
    """Return the rows of ``rows [p, t, f]`` at ``places``, ``[p, n, f]``; rows of other parts are zero."""
    local, held = (places, None) if part is None else within(places, part)
    taken = rows.flatten(0, 1).index_select(0, _joined(local, rows.size(1)))
    if held is not None:
        taken.masked_fill_(~held.view(-1, 1), 0)
    return taken.view(*places.shape, rows.size(2))


def add_rows(values: torch.Tensor, places: torch.Tensor, size: int, *, part: Part | None = None) -> torch.Tensor:
    """Return lists of `size` rows, ``[p, size, f]``, that sum the values ``[p, n, f]`` at their places."""
    length = size
    if part is not None:
        length = part[1] - part[0]
        places, held = within(places, part)
        values = values.masked_fill(~held.unsqueeze(2), 0)
    sums = values.new_zeros(len(values) * length, values.size(2))
    sums.index_add_(0, _joined(places, length), values.flatten(0, 1))
    return sums.view(len(values), length, values.size(2))


def _joined(places: torch.Tensor, length: int) -> torch.Tensor:
    """Convert indices into lists of `length` rows to indices into their concatenation, ``[p * n]``."""
    if len(places) > 1:
        places = places + length * torch.arange(len(places), device=places.device).unsqueeze(1)
    return places.flatten()
