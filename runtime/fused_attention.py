"""
Fused attention by torch's own kernels for the device.

The two functions replace `attention` and `attention_backward` in a generated program. Their arguments and results are
the same as in the importer's functions of the same names:

- query ``[batch, heads, length, width]``, key and value ``[batch, heads, keys, width]`` (or fewer heads, each shared by
  several neighbouring heads of the query);
- `attn_mask` (or None) is added to the scores and broadcasts to ``[batch, heads, length, keys]``;
- `is_causal` lets position i see only the keys up to i; `scale` None is ``1 / sqrt(width)``;
- `out` has the shape of the query; `logsumexp` is ``[batch, heads, length]``, float64 for float64 inputs, else float32.

Forward and backward choose the same kernel, from dtype, device and shape alone. A shard whose batch or heads
are empty gives typed empty results, because the kernels crash on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)

_AMPERE = (8, 0)
"""The first compute capability with flash attention, and with bfloat16."""

_LARGE_SHARED_MEMORY = ((8, 0), (9, 0), (10, 0))

_MASK_ALIGNMENT = 16
"""The distance between rows of a mask is a multiple of so many elements; torch pads its own masks to the same."""


class _Inputs(NamedTuple):
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None
    is_causal: bool
    scale: float | None


class _Saved(NamedTuple):
    grad_out: torch.Tensor
    out: torch.Tensor
    logsumexp: torch.Tensor


@dataclass(frozen=True)
class _Kernel:
    """
    A forward and backward kernel of torch.

    Args:
        shares_heads: whether several heads of the query can share keys and values; otherwise these are repeated.
        packed: whether the width of each head must be contiguous.
    """

    forward: Callable[[_Inputs], tuple[torch.Tensor, torch.Tensor]]
    backward: Callable[[_Inputs, _Saved], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    shares_heads: bool
    packed: bool

    def prepared(self, given: _Inputs) -> _Inputs:
        """Return the operands in the layout that the kernel requires."""
        query, key, value = given[:3]
        times = query.size(1) // key.size(1)
        if times > 1 and not self.shares_heads:
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        if self.packed:
            query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
        return given._replace(query=query, key=key, value=value)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute softmax attention; return ``(out, logsumexp)``."""
    if query.numel() == 0:
        return torch.empty_like(query), query.new_empty(query.shape[:-1], dtype=_accumulator(query))
    kernel = _kernel(query, key, attn_mask, is_causal)
    return kernel.forward(kernel.prepared(_Inputs(query, key, value, attn_mask, is_causal, scale)))


def attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the gradients of `attention`; return ``(grad_query, grad_key, grad_value)``."""
    if query.numel() == 0:
        return torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
    kernel = _kernel(query, key, attn_mask, is_causal)
    inputs = kernel.prepared(_Inputs(query, key, value, attn_mask, is_causal, scale))
    grad_query, grad_key, grad_value = kernel.backward(inputs, _Saved(grad_out, out, logsumexp))
    return grad_query, _of_heads(grad_key, key), _of_heads(grad_value, value)


def _of_heads(grad: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """Sum the gradient of keys or values over the query heads that share them."""
    return grad if grad.shape == shared.shape else grad.unflatten(1, (shared.size(1), -1)).sum(2)


def _accumulator(query: torch.Tensor) -> torch.dtype:
    return torch.promote_types(query.dtype, torch.float32)


def _cpu_forward(inputs: _Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    return aten._scaled_dot_product_flash_attention_for_cpu(
        *inputs[:3], 0.0, inputs.is_causal, attn_mask=inputs.attn_mask, scale=inputs.scale
    )


def _cpu_backward(inputs: _Inputs, saved: _Saved) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        saved.grad_out,
        *inputs[:3],
        saved.out,
        saved.logsumexp,
        0.0,
        inputs.is_causal,
        attn_mask=inputs.attn_mask,
        scale=inputs.scale,
    )


def _flash_forward(inputs: _Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    out, logsumexp, *_ = aten._scaled_dot_product_flash_attention(
        *inputs[:3], 0.0, inputs.is_causal, scale=inputs.scale
    )
    return out, logsumexp


def _flash_backward(inputs: _Inputs, saved: _Saved) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    unused_seed = torch.zeros((), dtype=torch.int64, device=inputs.query.device)
    return aten._scaled_dot_product_flash_attention_backward(
        saved.grad_out,
        *inputs[:3],
        saved.out,
        saved.logsumexp,
        None,
        None,
        inputs.query.size(-2),
        inputs.key.size(-2),
        0.0,
        inputs.is_causal,
        unused_seed,
        unused_seed,
        scale=inputs.scale,
    )


def _aligned_mask(inputs: _Inputs) -> torch.Tensor | None:
    """
    Return the mask in the layout of the memory-efficient kernel: contiguous keys, and rows at multiples of
    `_MASK_ALIGNMENT` elements. Broadcast dims stay broadcast, and take no memory.
    """
    if inputs.attn_mask is None:
        return None
    length, keys = inputs.query.size(-2), inputs.key.size(-2)
    mask = inputs.attn_mask.to(inputs.query.dtype)
    mask = mask.expand(*mask.shape[:-1], keys)
    if mask.stride(-1) != 1 or keys % _MASK_ALIGNMENT:
        padded = mask.new_empty(*mask.shape[:-1], keys + -keys % _MASK_ALIGNMENT)
        mask = padded[..., :keys].copy_(mask)
    return mask.expand(*inputs.query.shape[:2], length, keys)


def _efficient_forward(inputs: _Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    out, logsumexp, *_ = aten._scaled_dot_product_efficient_attention(
        *inputs[:3], _aligned_mask(inputs), True, 0.0, inputs.is_causal, scale=inputs.scale
    )
    # The kernel pads the lengths to a multiple of 32.
    return out, logsumexp[..., : inputs.query.size(-2)]


def _efficient_backward(inputs: _Inputs, saved: _Saved) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    unused_seed = torch.zeros((), dtype=torch.int64, device=inputs.query.device)
    padding = -inputs.query.size(-2) % 32
    grad_query, grad_key, grad_value, _ = aten._scaled_dot_product_efficient_attention_backward(
        saved.grad_out,
        *inputs[:3],
        _aligned_mask(inputs),
        saved.out,
        torch.nn.functional.pad(saved.logsumexp, (0, padding), value=torch.inf),
        unused_seed,
        unused_seed,
        0.0,
        [True, True, True, False],
        inputs.is_causal,
        scale=inputs.scale,
    )
    return grad_query, grad_key, grad_value


def _plain_scores(inputs: _Inputs, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """Return the scores before the softmax, and their scale factor."""
    scale = 1 / math.sqrt(inputs.query.size(-1)) if inputs.scale is None else inputs.scale
    scores = inputs.query.to(dtype) @ inputs.key.to(dtype).transpose(-2, -1) * scale
    if inputs.is_causal:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(unseen, -torch.inf)
    return (scores if inputs.attn_mask is None else scores + inputs.attn_mask), scale


def _softmax(scores: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
    """Return the attention weights; as in the other kernels, they are zero for a query that sees no key."""
    return (scores - logsumexp.masked_fill(logsumexp == -torch.inf, 0).unsqueeze(-1)).exp()


def _plain_forward(inputs: _Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    scores, _ = _plain_scores(inputs, _accumulator(inputs.query))
    logsumexp = scores.logsumexp(-1)
    return _softmax(scores, logsumexp).to(inputs.value.dtype) @ inputs.value, logsumexp


def _plain_backward(inputs: _Inputs, saved: _Saved) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dtype = _accumulator(inputs.query)
    scores, scale = _plain_scores(inputs, dtype)
    weights = _softmax(scores, saved.logsumexp)
    grad_out = saved.grad_out.to(dtype)
    grad_weights = grad_out @ inputs.value.to(dtype).transpose(-2, -1)
    grad_scores = scale * weights * (grad_weights - (grad_out * saved.out).sum(-1, keepdim=True))
    grads = (
        grad_scores @ inputs.key.to(dtype),
        grad_scores.transpose(-2, -1) @ inputs.query.to(dtype),
        weights.transpose(-2, -1) @ grad_out,
    )
    grad_query, grad_key, grad_value = (grad.to(inputs.query.dtype) for grad in grads)
    return grad_query, grad_key, grad_value


_CPU = _Kernel(_cpu_forward, _cpu_backward, shares_heads=True, packed=False)
_FLASH = _Kernel(_flash_forward, _flash_backward, shares_heads=True, packed=True)
_EFFICIENT = _Kernel(_efficient_forward, _efficient_backward, shares_heads=False, packed=True)
_PLAIN = _Kernel(_plain_forward, _plain_backward, shares_heads=False, packed=False)


def _kernel(query: torch.Tensor, key: torch.Tensor, attn_mask: torch.Tensor | None, is_causal: bool) -> _Kernel:
    """Return the fastest kernel for these operands, chosen only by properties that forward and backward both know."""
    if query.device.type == "cpu":
        return _CPU
    if query.device.type != "cuda" or query.dtype == torch.float64 or query.size(-1) % 8:
        return _PLAIN
    capability = torch.cuda.get_device_capability(query.device)
    if query.dtype in _HALF and attn_mask is None and capability >= _AMPERE and query.size(-1) <= _widest(capability):
        # Flash aligns the causal triangle to the last key, torch's definition to the first.
        if not is_causal or query.size(-2) == key.size(-2):
            return _FLASH
    if query.dtype == torch.bfloat16 and capability < _AMPERE:
        return _PLAIN
    return _EFFICIENT


def _widest(capability: tuple[int, int]) -> int:
    """Return the width of the widest heads with a flash backward kernel; only data-center GPUs have memory for 256."""
    return 256 if capability in _LARGE_SHARED_MEMORY else 192
