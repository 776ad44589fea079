"""
Layers that the shipped transformers share.

Query, key and value have separate linear layers, so that splitting a layer's output features over a mesh axis splits
the heads; one fused projection would interleave the three.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from .moe import MoE, MoEConfig, unpacked

AttentionForm = Literal["fused", "decomposed"]
"""``fused`` calls `scaled_dot_product_attention`; ``decomposed`` uses separate matmuls and a softmax."""


def decomposed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    causal: bool,
    dropout: float = 0.0,
) -> torch.Tensor:
    """
    Compute attention of ``[batch, heads, length, head width]`` tensors with separate ops.

    Args:
        mask: True where a key may be seen; broadcasts to ``[batch, heads, length, length]``.
        causal: whether a position sees only itself and earlier positions.
        dropout: the probability of dropping a weight.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    lowest = torch.finfo(scores.dtype).min
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, lowest)
    if mask is not None:
        scores = scores.masked_fill(~mask, lowest)
    return F.dropout(F.softmax(scores, dim=-1), dropout) @ value


class SelfAttention(nn.Module):
    """
    Multi-head self-attention over ``[batch, length, width]``.

    Args:
        dropout: the probability of dropping an attention weight in training.
    """

    def __init__(self, width: int, heads: int, *, causal: bool, form: AttentionForm, dropout: float = 0.0) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} is not a multiple of {heads} heads")
        self.heads = heads
        self.causal = causal
        self.form = form
        self.dropout = dropout
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        query, key, value = (self._split_heads(project(x)) for project in (self.q, self.k, self.v))
        dropout = self.dropout if self.training else 0.0
        if self.form == "fused":
            mixed = F.scaled_dot_product_attention(query, key, value, mask, dropout, self.causal)
        else:
            mixed = decomposed_attention(query, key, value, mask, causal=self.causal, dropout=dropout)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split_heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, hidden: int, *, approximate: Literal["none", "tanh"] = "none") -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.act = nn.GELU(approximate=approximate)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


def every_second(experts: MoEConfig | None, layer: int) -> MoEConfig | None:
    """Return `experts` for odd layers and None for even ones, so that every second layer has experts."""
    return experts if layer % 2 else None


class PreNormBlock(nn.Module):
    """
    A transformer block that normalises before attention and before the feed-forward.

    Args:
        dropout: the probability, in training, of dropping an attention weight or an element of a residual branch's
            output.
        experts: a mixture of experts that replaces the feed-forward; the block then also returns the balancing loss.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        causal: bool,
        form: AttentionForm,
        approximate: Literal["none", "tanh"] = "none",
        dropout: float = 0.0,
        experts: MoEConfig | None = None,
    ) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads, causal=causal, form=form, dropout=dropout)
        self.ln_2 = nn.LayerNorm(width)
        if experts is None:
            self.mlp = FeedForward(width, 4 * width, approximate=approximate)
        else:
            self.mlp = MoE(width, 4 * width, experts)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        x = x + self.drop(self.attn(self.ln_1(x)))
        mixed, *balance = unpacked(self.mlp(self.ln_2(x)))
        x = x + self.drop(mixed)
        return (x, *balance) if balance else x


def initialise_transformer(module: nn.Module) -> None:
    """Draw linear and embedding weights from N(0, 0.02), with zero biases (for `nn.Module.apply`)."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def token_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of ``[batch, length, vocabulary]`` logits over the labels that are not -100."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
