"""
Define fused attention as two functions that stand for the kernels of all devices.

Capture replaces torch's device-specific ops by these functions, so that one program serves CPU and GPU. They are
definitions in plain tensor arithmetic: the interpreter runs them, and the fast kernels are tested against them.

Shapes: query ``[batch, heads, length, width]``; key and value ``[batch, heads, keys, width]``, or fewer heads, which
groups of consecutive query heads share; `attn_mask` is added to the scores and broadcasts to
``[batch, heads, length, keys]``; `out` has the shape and dtype of `query`; `logsumexp` is ``[batch, heads, length]``,
in float64 for float64 inputs and in float32 for all others.
"""

from __future__ import annotations

import math

import torch

from .fused_op import FusedOp


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Compute softmax attention and the logsumexp of its scores, which backward needs to recompute the weights.

    Args:
        is_causal: whether position i attends only to the keys up to i.
        scale: factor of the scores, by default ``1 / sqrt(width)``.

    Returns:
        ``(out, logsumexp)``.
    """
    scores = _scores(query, key, attn_mask, is_causal, scale)
    logsumexp = torch.logsumexp(scores, dim=-1)
    weights = _weights(scores, logsumexp)
    return (weights @ _for_heads(value, query).to(weights.dtype)).to(query.dtype), logsumexp


def attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """
    Compute the gradients of `attention` with respect to query, key and value.

    Args:
        out: the first result of `attention` on the same arguments.
        logsumexp: the second result.

    Returns:
        ``(grad_query, grad_key, grad_value)``.
    """
    scores = _scores(query, key, attn_mask, is_causal, scale)
    weights = _weights(scores, logsumexp)
    grad_out, out = grad_out.to(weights.dtype), out.to(weights.dtype)
    grad_weights = grad_out @ _for_heads(value, query).to(weights.dtype).transpose(-2, -1)
    offset = (grad_out * out).sum(-1, keepdim=True)
    grad_scores = weights * (grad_weights - offset) * _scale_of(query, scale)
    grads = (
        grad_scores @ _for_heads(key, query).to(weights.dtype),
        _of_heads(grad_scores.transpose(-2, -1) @ query.to(weights.dtype), key),
        _of_heads(weights.transpose(-2, -1) @ grad_out, value),
    )
    grad_query, grad_key, grad_value = (grad.to(query.dtype) for grad in grads)
    return grad_query, grad_key, grad_value


_ARGUMENTS = ("query", "key", "value", "attn_mask", "is_causal", "scale")
_BACKWARD = ("grad_out", "query", "key", "value", "out", "logsumexp", "attn_mask", "is_causal", "scale")

OPS = (
    FusedOp(attention, {"aten::_scaled_dot_product_flash_attention_for_cpu": _ARGUMENTS}),
    FusedOp(attention_backward, {"aten::_scaled_dot_product_flash_attention_for_cpu_backward": _BACKWARD}),
)


def _for_heads(shared: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Repeat the heads of keys or values for each head of the query."""
    return shared.repeat_interleave(query.size(1) // shared.size(1), 1) if shared.size(1) else shared


def _of_heads(grad: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """Sum the gradient of keys or values over the query heads that share them."""
    return grad.unflatten(1, (shared.size(1), -1)).sum(2) if shared.size(1) else grad


def _scale_of(query: torch.Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.size(-1)) if scale is None else scale


def _weights(scores: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
    """Return the softmax, which is all zero, as in torch, for a query that attends to no key."""
    return torch.exp(scores - logsumexp.masked_fill(logsumexp == -torch.inf, 0).unsqueeze(-1))


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(dtype) @ _for_heads(key, query).to(dtype).transpose(-2, -1) * _scale_of(query, scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores if attn_mask is None else scores + attn_mask
