"""
Products of grouped rows: the experts of a mixture, each with the tokens that were sent to it.

The two functions take the place of `grouped_mm` and `grouped_mm_backward` in a generated program. Their arguments and
results are those of the importer's functions of the same names:

- `rows` ``[s, k]`` are those from `start` on of all rows, which are sorted by group;
- `matrices` ``[e, k, n]`` are those of the groups from `first` on;
- `ends` ``[all groups]`` is where each group ends among all rows;
- the product of a row whose group is elsewhere is zero, and so is that of a row beyond the last end.

`grouped_bmm` and its gradient have several lists of rows, ``[p, s, k]``, each sorted by itself, with ends
``[p, all groups]``. They are sorted into one list, so that a group's rows of all lists are one product. Where rows of
the batch are shared evenly there is one list from the start (`sort-across-rows`).

On CUDA products in bfloat16 are one kernel of torch for all groups, which reads `ends` on the device. Others are one
for each group, and the CPU waits for `ends`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

BOTH = (True, True)
"""The mask that asks for the gradients of rows and of matrices."""

Gradients = tuple[torch.Tensor | None, torch.Tensor | None]
"""Of rows and of matrices."""


def grouped_mm(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, start: int = 0, first: int = 0
) -> torch.Tensor:
    """Each row times the matrix of its group, ``[s, n]``."""
    if _is_one_kernel(rows, matrices):
        here = _LocalGroups.of(rows, matrices, ends, start, first)
        return here.of_rows(rows, matrices)
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
    output_mask: Sequence[bool] = BOTH,
) -> Gradients:
    """
    The gradients with respect to rows and matrices; None is one that `output_mask` does not ask for.

    Args:
        grad: ``[s, n]``, that of the result.
    """
    if _is_one_kernel(rows, matrices):
        here = _LocalGroups.of(rows, matrices, ends, start, first)
        return (
            here.of_rows(grad, matrices.transpose(1, 2)) if output_mask[0] else None,
            here.of_matrices(rows, grad) if output_mask[1] else None,
        )
    grad_rows, grad_matrices = (
        torch.zeros_like(each) if asked else None for each, asked in zip((rows, matrices), output_mask, strict=True)
    )
    for group, part in _parts(len(rows), len(matrices), ends, start, first):
        if grad_rows is not None:
            torch.mm(grad[part], matrices[group].t(), out=grad_rows[part])
        if grad_matrices is not None:
            torch.mm(rows[part].t(), grad[part], out=grad_matrices[group])
    return grad_rows, grad_matrices


def grouped_bmm(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, start: int = 0, first: int = 0
) -> torch.Tensor:
    """`grouped_mm` of several lists of rows, ``[p, s, n]``."""
    if len(rows) == 1:
        return grouped_mm(rows[0], matrices, ends[0], start, first).unsqueeze(0)
    lists = _OneList.of(rows, ends, start)
    return lists.apart(grouped_mm(lists.joined(rows), matrices, lists.ends, 0, first), rows)


def grouped_bmm_backward(
    rows: torch.Tensor,
    matrices: torch.Tensor,
    ends: torch.Tensor,
    grad: torch.Tensor,
    start: int = 0,
    first: int = 0,
    output_mask: Sequence[bool] = BOTH,
) -> Gradients:
    """
    The gradients of `grouped_bmm`; None is one that `output_mask` does not ask for.

    Args:
        grad: ``[p, s, n]``, that of the result.
    """
    if len(rows) == 1:
        grad_rows, of_matrices = grouped_mm_backward(rows[0], matrices, ends[0], grad[0], start, first, output_mask)
        return None if grad_rows is None else grad_rows.unsqueeze(0), of_matrices
    lists = _OneList.of(rows, ends, start)
    joined = lists.joined(rows), matrices, lists.ends, lists.joined(grad)
    grad_rows, of_matrices = grouped_mm_backward(*joined, 0, first, output_mask)
    return None if grad_rows is None else lists.apart(grad_rows, rows), of_matrices


class _OneList(NamedTuple):
    """
    Several lists of rows as one that is sorted by group.

    Args:
        order: of each row of the one list, its place among the rows of all lists.
        places: of each row of all lists, its place in the one.
        ends: where each group ends in it.
    """

    order: torch.Tensor
    places: torch.Tensor
    ends: torch.Tensor

    @staticmethod
    def of(rows: torch.Tensor, ends: torch.Tensor, start: int) -> _OneList:
        places = torch.arange(start, start + rows.size(1), device=rows.device).expand(rows.shape[:2]).contiguous()
        group = torch.searchsorted(ends.to(places.dtype), places, right=True).flatten()
        counts = torch.zeros(ends.size(1) + 1, dtype=torch.long, device=rows.device)
        counts.scatter_add_(0, group, torch.ones_like(group))
        order = group.argsort(stable=True)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=rows.device))
        return _OneList(order, inverse, counts[:-1].cumsum(0))

    def joined(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all lists in the order of the one."""
        return rows.flatten(0, 1).index_select(0, self.order)

    def apart(self, joined: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Rows in the order of the one list, each back in the list that it is of; as many as `rows` are."""
        return joined.index_select(0, self.places).view(*rows.shape[:2], joined.size(1))


def _is_one_kernel(rows: torch.Tensor, matrices: torch.Tensor) -> bool:
    """Whether torch has a kernel for all groups at once: its rows begin at multiples of 16 bytes."""
    aligned = matrices.size(1) % 8 == 0 and matrices.size(2) % 8 == 0
    return rows.device.type == "cuda" and rows.dtype == torch.bfloat16 and aligned and matrices.numel() * len(rows) > 0


class _LocalGroups(NamedTuple):
    """
    Which rows are in groups that are here, on the device.

    Args:
        begins, ends: of each group among the rows that are here; torch's kernel takes the rows before the first to be
            of the first group.
        inside: ``[s, 1]``, whether the group of a row is here.
    """

    begins: torch.Tensor
    ends: torch.Tensor
    inside: torch.Tensor

    @staticmethod
    def of(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, start: int, first: int) -> _LocalGroups:
        bounds = torch.nn.functional.pad(ends, (1, 0)).narrow(0, first, len(matrices) + 1)
        bounds = (bounds - start).clamp(0, len(rows)).to(torch.int32)
        places = torch.arange(len(rows), device=rows.device)
        inside = (places >= bounds[0]) & (places < bounds[-1])
        return _LocalGroups(bounds[:-1], bounds[1:], inside.unsqueeze(1))

    def of_rows(self, rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
        """Each row times the matrix of its group."""
        products = torch.ops.aten._grouped_mm(rows.contiguous(), matrices, self.ends)
        return products.masked_fill_(~self.inside, 0)

    def of_matrices(self, rows: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """For each group the product of its rows, transposed, and their gradients."""
        grad = grad.masked_fill(~self.inside, 0)
        products = torch.ops.aten._grouped_mm(rows.contiguous().t(), grad, self.ends)
        # Not every kernel writes the product of no rows.
        return products.masked_fill_((self.begins == self.ends).view(-1, 1, 1), 0)


def _parts(rows: int, matrices: int, ends: torch.Tensor, start: int, first: int) -> Iterator[tuple[int, slice]]:
    """Each group that is here, by its local number, with the rows of it that are here."""
    bounds = [0, *ends.tolist()]
    for group in range(matrices):
        begin, end = (min(max(bound - start, 0), rows) for bound in bounds[first + group : first + group + 2])
        if begin < end:
            yield group, slice(begin, end)
