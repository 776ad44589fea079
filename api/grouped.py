"""`grouped_mm`: products of grouped rows as a torch op, for models that sort their tokens by expert."""

from __future__ import annotations

import torch

from ..runtime import grouped_products


def grouped_mm(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """
    Return the product of each row with the matrix of its group, for any floating dtype and with gradients.

    Under autocast it computes in the autocast dtype, as other matrix products do.

    Args:
        rows: ``[s, k]``, sorted by group.
        matrices: ``[groups, k, n]``.
        ends: ``[groups]``, the end of each group among the rows, ascending; products of rows beyond the last are zero.

    Returns:
        ``[s, n]``.
    """
    if torch.is_autocast_enabled(rows.device.type):
        dtype = torch.get_autocast_dtype(rows.device.type)
        rows, matrices = rows.to(dtype), matrices.to(dtype)
    return grouped_mm_op(rows, matrices, ends)


@torch.library.custom_op("shardwright::grouped_mm", mutates_args=())
def grouped_mm_op(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Compute `grouped_mm` for operands of one dtype."""
    return grouped_products.grouped_mm(rows, matrices, ends)


@torch.library.custom_op("shardwright::grouped_mm_backward", mutates_args=())
def _backward(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    of_rows, of_matrices = grouped_products.grouped_mm_backward(rows, matrices, ends, grad)
    assert of_rows is not None, "both gradients were requested"
    assert of_matrices is not None, "both gradients were requested"
    return of_rows, of_matrices


@grouped_mm_op.register_fake
def _(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return rows.new_empty(rows.size(0), matrices.size(2))


@_backward.register_fake
def _(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(rows), torch.empty_like(matrices)


grouped_mm_op.register_autograd(
    lambda ctx, grad: (*_backward(*ctx.saved_tensors, grad), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
