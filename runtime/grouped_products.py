"""
Products of grouped rows: the experts of a mixture, each with its tokens.

The two functions replace `grouped_mm` and `grouped_mm_backward` in a generated program. Their arguments and results are
the same as in the importer's functions of the same names:

- `rows` ``[s, k]`` are the rows from index `start` on of all rows, which are sorted by group;
- `matrices` ``[e, k, n]`` are the matrices of the groups from `first` on;
- `ends` ``[all groups]`` is the end of each group in all rows;
- the product is zero for a row whose group has no matrix here, and for a row beyond the last end.

`grouped_bmm` and its gradient have several lists of rows, ``[p, s, k]``, each sorted separately, with ends
``[p, all groups]``. They are sorted into one list, so that a group's rows of all lists form one product. If the rows of
the batch are split evenly, there is one list from the start (`sort-across-rows`).

On CUDA, bfloat16 products of all groups are one kernel of torch, which reads `ends` on the device. All other products
run group by group, and the CPU waits for `ends`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

BOTH = (True, True)
"""The mask that requests the gradients of rows and of matrices."""

Gradients = tuple[torch.Tensor | None, torch.Tensor | None]
"""The gradients of rows and of matrices."""


def grouped_mm(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, start: int = 0, first: int = 0
) -> torch.Tensor:
    """Multiply each row by the matrix of its group; the result is ``[s, n]``."""
    if _is_one_kernel(rows, matrices):
        return _LocalGroups.of(rows, matrices, ends, start, first).of_rows(rows, matrices)
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
    Return the gradients of rows and matrices, with None for a gradient that `output_mask` does not request.

    Args:
        grad: gradient of the result, ``[s, n]``.
    """
    if _is_one_kernel(rows, matrices):
        here = _LocalGroups.of(rows, matrices, ends, start, first)
        return (
            here.of_rows(grad, matrices.transpose(1, 2)) if output_mask[0] else None,
            here.of_matrices(rows, grad) if output_mask[1] else None,
        )
    grad_rows, grad_matrices = (
        torch.zeros_like(x) if requested else None for x, requested in zip((rows, matrices), output_mask, strict=True)
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
    """Apply `grouped_mm` to several lists of rows; the result is ``[p, s, n]``."""
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
    Return the gradients of `grouped_bmm`, with None for a gradient that `output_mask` does not request.

    Args:
        grad: gradient of the result, ``[p, s, n]``.
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
    Several lists of rows, merged into one list that is sorted by group.

    Args:
        order: index of each row of the merged list among the rows of all lists.
        places: index of each row of all lists in the merged list.
        ends: end of each group in the merged list.
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
        """Merge the rows of all lists."""
        return rows.flatten(0, 1).index_select(0, self.order)

    def apart(self, joined: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return merged rows to their lists, in the shape of `rows`."""
        return joined.index_select(0, self.places).view(*rows.shape[:2], joined.size(1))


def _is_one_kernel(rows: torch.Tensor, matrices: torch.Tensor) -> bool:
    """Whether torch has one kernel for all groups, which requires rows that begin at multiples of 16 bytes."""
    aligned = matrices.size(1) % 8 == 0 and matrices.size(2) % 8 == 0
    return rows.device.type == "cuda" and rows.dtype == torch.bfloat16 and aligned and matrices.numel() * len(rows) > 0


class _LocalGroups(NamedTuple):
    """
    The rows whose groups are on this device.

    Args:
        begins, ends: bounds of each group among the local rows; torch's kernel counts the rows before the first group
            as rows of the first group.
        inside: ``[s, 1]``, whether the group of a row is on this device.
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
        """Multiply each row by the matrix of its group."""
        products = torch.ops.aten._grouped_mm(rows.contiguous(), matrices, self.ends)
        return products.masked_fill_(~self.inside, 0)

    def of_matrices(self, rows: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """Return, for each group, the transposed rows times their gradients."""
        grad = grad.masked_fill(~self.inside, 0)
        products = torch.ops.aten._grouped_mm(rows.contiguous().t(), grad, self.ends)
        # Some kernels leave the product of an empty group unwritten.
        return products.masked_fill_((self.begins == self.ends).view(-1, 1, 1), 0)


def _parts(rows: int, matrices: int, ends: torch.Tensor, start: int, first: int) -> Iterator[tuple[int, slice]]:
    """Yield each group on this device by its local number, with its local rows."""
    bounds = [0, *ends.tolist()]
    for group in range(matrices):
        begin, end = (min(max(bound - start, 0), rows) for bound in bounds[first + group : first + group + 2])
        if begin < end:
            yield group, slice(begin, end)
