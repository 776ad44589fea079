"""
Define grouped matrix products as functions that stand for the ops of several libraries.

Rows are sorted by group, and each group has a separate matrix, as tokens and experts in a mixture of experts. A device
may hold a shard of the rows, of the groups, or of both. The interpreter runs these definitions, and the runtime's
kernels are tested against them.

Shapes: rows ``[s, k]``, a shard that begins at row `start`; matrices ``[e, k, n]``, a shard that begins at group
`first`; `ends` ``[all groups]``, the end of each group among all rows; rows after the last end belong to no group.
Several lists have rows ``[p, s, k]`` and ends ``[p, all groups]``: each is sorted separately, and all share matrices.
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
    """Return each row times the matrix of its group, ``[s, n]``, or zero if the group's matrix is on another device."""
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
    Return the gradients of `grouped_mm` with respect to rows and matrices, each None unless `output_mask` asks for it.

    Args:
        grad: gradient of the result, ``[s, n]``.
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
    """Return `grouped_mm` of several lists of rows, ``[p, s, n]``."""
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
    """Return the gradients of `grouped_bmm` with respect to rows and matrices, as selected by `output_mask`."""
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
    """Return the local group of each row, and whether the group is on this rank (if not, the number is arbitrary)."""
    places = torch.arange(start, start + rows, device=ends.device).expand(*ends.shape[:-1], rows).contiguous()
    group = torch.searchsorted(ends.long(), places, right=True) - first
    return group.clamp(0, matrices - 1), (group >= 0) & (group < matrices)
