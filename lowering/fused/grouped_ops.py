"""
Products of grouped rows as two functions that stand for every library's op of that kind.

Rows come sorted by group, and each group has a matrix of its own: the experts of a mixture and their tokens. A device
may hold some of the rows, some of the groups, or both. These are the definitions that an interpreter runs and that the
runtime's kernels are tested against.

Shapes: rows ``[s, k]``, the rows from `start` on; matrices ``[e, k, n]``, those of the groups from `first` on; `ends`
``[all groups]`` is where each group ends among all rows, so that rows beyond the last end are in none. The functions of
several lists have rows ``[p, s, k]`` and ends ``[p, all groups]``: each list is sorted by itself, the matrices are the
same for all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .fused_op import FusedOp

BOTH = (True, True)
"""The mask that asks for the gradients of rows and of matrices."""


def grouped_mm(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, start: int = 0, first: int = 0
) -> torch.Tensor:
    """Each row times the matrix of its group, ``[s, n]``; zero for a row of a group that is not here."""
    group, here = _groups(rows.size(-2), len(matrices), ends, start, first)
    products = torch.einsum("...sk,...skn->...sn", rows, matrices[group])
    return torch.where(here.unsqueeze(-1), products, 0)


def grouped_mm_backward(
    rows: torch.Tensor,
    matrices: torch.Tensor,
    ends: torch.Tensor,
    grad: torch.Tensor,
    start: int = 0,
    first: int = 0,
    output_mask: Sequence[bool] = BOTH,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """
    The gradients of `grouped_mm` with respect to rows and matrices; None is one that `output_mask` does not ask for.

    Args:
        grad: that of its result, ``[s, n]``.
    """
    of_rows = grouped_mm(grad, matrices.transpose(1, 2), ends, start, first) if output_mask[0] else None
    if not output_mask[1]:
        return of_rows, None
    group, here = _groups(rows.size(-2), len(matrices), ends, start, first)
    outer = torch.einsum("...sk,...sn->...skn", torch.where(here.unsqueeze(-1), rows, 0), grad)
    return of_rows, torch.zeros_like(matrices).index_add(0, group.flatten(), outer.reshape(-1, *matrices.shape[1:]))


def grouped_bmm(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, start: int = 0, first: int = 0
) -> torch.Tensor:
    """`grouped_mm` of several lists of rows, ``[p, s, n]``."""
    return grouped_mm(rows, matrices, ends, start, first)


def grouped_bmm_backward(
    rows: torch.Tensor,
    matrices: torch.Tensor,
    ends: torch.Tensor,
    grad: torch.Tensor,
    start: int = 0,
    first: int = 0,
    output_mask: Sequence[bool] = BOTH,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradients of `grouped_bmm` with respect to rows and matrices, those that `output_mask` asks for."""
    return grouped_mm_backward(rows, matrices, ends, grad, start, first, output_mask)


OPS = (
    FusedOp(grouped_mm, {"transformers::grouped_mm_fallback": (), "shardwright::grouped_mm": ()}),
    FusedOp(
        grouped_mm_backward,
        {"transformers::grouped_mm_fallback_backward": (), "shardwright::grouped_mm_backward": ()},
    ),
    FusedOp(grouped_bmm),
    FusedOp(grouped_bmm_backward),
)


def _groups(rows: int, matrices: int, ends: torch.Tensor, start: int, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The local group of each row, and whether it is on this rank: if not, the number is another row's."""
    places = torch.arange(start, start + rows, device=ends.device).expand(*ends.shape[:-1], rows).contiguous()
    group = torch.searchsorted(ends.long(), places, right=True) - first
    return group.clamp(0, matrices - 1), (group >= 0) & (group < matrices)
