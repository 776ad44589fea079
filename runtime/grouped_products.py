"""
Products of grouped rows: the experts of a mixture, each with the tokens that were sent to it.

The two functions take the place of `grouped_mm` and `grouped_mm_backward` in a generated program. Their arguments and
results are those of the importer's functions of the same names:

- `rows` ``[s, k]`` are those from `start` on of all rows, which are sorted by group;
- `matrices` ``[e, k, n]`` are those of the groups from `first` on;
- `ends` ``[all groups]`` is where each group ends among all rows;
- the product of a row whose group is elsewhere is zero, and so is that of a row beyond the last end.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch


def grouped_mm(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, start: int = 0, first: int = 0
) -> torch.Tensor:
    """Each row times the matrix of its group, ``[s, n]``."""
    out = rows.new_zeros(len(rows), matrices.size(2))
    for group, part in _parts(len(rows), len(matrices), ends, start, first):
        torch.mm(rows[part], matrices[group], out=out[part])
    return out


def grouped_mm_backward(
    rows: torch.Tensor,
    matrices: torch.Tensor,
    ends: torch.Tensor,
    grad: torch.Tensor,
    start: int = 0,
    first: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients with respect to rows and matrices; `grad` ``[s, n]`` is that of the result."""
    grad_rows, grad_matrices = torch.zeros_like(rows), torch.zeros_like(matrices)
    for group, part in _parts(len(rows), len(matrices), ends, start, first):
        torch.mm(grad[part], matrices[group].t(), out=grad_rows[part])
        torch.mm(rows[part].t(), grad[part], out=grad_matrices[group])
    return grad_rows, grad_matrices


def _parts(rows: int, matrices: int, ends: torch.Tensor, start: int, first: int) -> Iterator[tuple[int, slice]]:
    """Each group that is here, by its local number, with the rows of it that are here."""
    bounds = [0, *ends.tolist()]
    for group in range(matrices):
        begin, end = (min(max(bound - start, 0), rows) for bound in bounds[first + group : first + group + 2])
        if begin < end:
            yield group, slice(begin, end)
