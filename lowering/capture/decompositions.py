"""
Decompose ops while a step is traced.

Losses then end in a mean or a sum. A determinant factorizes a matrix or its transpose, by the strides of the matrix,
and its gradient depends on this choice. The strides at run time may be others, so the choice is made while tracing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch._decomp import get_decompositions

aten = torch.ops.aten


def _parity(pivots: torch.Tensor) -> torch.Tensor:
    """Return the sign of the permutation of rows that the pivots of each matrix describe: 1 or -1."""
    places = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)
    return 1 - 2 * (pivots != places).sum(-1).remainder(2)


def _factors(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the LU factors and pivots that torch's kernels and gradients use."""
    is_transposed = matrix.is_contiguous() and not matrix.is_complex()
    factors, pivots, _ = aten.linalg_lu_factor_ex.default(matrix.mT if is_transposed else matrix)
    return factors, pivots


def _det(matrix: torch.Tensor) -> tuple[torch.Tensor, ...]:
    factors, pivots = _factors(matrix)
    return factors.diagonal(0, -2, -1).prod(-1) * _parity(pivots), factors, pivots


def _slogdet(matrix: torch.Tensor) -> tuple[torch.Tensor, ...]:
    factors, pivots = _factors(matrix)
    diagonal = factors.diagonal(0, -2, -1)
    sign = diagonal.sgn().prod(-1) * _parity(pivots)
    return sign, diagonal.abs().log().sum(-1), factors, pivots


DETERMINANTS = {aten._linalg_det.default: _det, aten._linalg_slogdet.default: _slogdet}
"""Overload -> its decomposition, for ops whose gradients depend on strides; they have no rules."""

DECOMPOSITIONS: Mapping[torch._ops.OpOverload, Callable[..., object]] = {
    **get_decompositions(  # type: ignore[arg-type]
        (
            aten.mse_loss,
            aten.mse_loss_backward,
            aten.smooth_l1_loss,
            aten.smooth_l1_loss_backward,
            aten.huber_loss,
            aten.huber_loss_backward,
            aten.soft_margin_loss,
            aten.soft_margin_loss_backward,
            aten.binary_cross_entropy,
            aten.binary_cross_entropy_backward,
            aten.binary_cross_entropy_with_logits,
            aten._fused_rms_norm,
            aten._fused_rms_norm_backward,
            aten.addcdiv,
            aten.addcmul,
            aten.stack,
        )
    ),
    **DETERMINANTS,
}
"""Overload -> its decomposition."""
