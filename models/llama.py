"""
Llama: a causal language model with RMS normalisation, rotary positions, gated feed-forwards and few key heads.

After Touvron et al., "Llama" (2023), and Grattafiori et al., "The Llama 3 Herd of Models" (2024). With experts in the
place of every feed-forward it is Mixtral, after Jiang et al., "Mixtral of Experts" (2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from ..api.training_step import TrainingStep
from .moe import MoE, MoEConfig, balanced, through, unpacked
from .transformer import initialise_transformer, token_cross_entropy


@dataclass(frozen=True)
class LlamaConfig:
    """
    Sizes of a Llama; the defaults are the sizes of Llama 3 with 8 B parameters.

    Args:
        heads: number of query heads.
        key_heads: number of key and value heads, each shared by ``heads / key_heads`` query heads.
        base: the base of the rotary frequencies; the slowest rotation has a period of about ``2 pi * base`` positions.
        tied: whether the last layer shares the weight of the embedding.
        experts: a mixture of experts that replaces every feed-forward.
    """

    layers: int = 32
    width: int = 4096
    heads: int = 32
    key_heads: int = 8
    hidden: int = 14336
    vocabulary: int = 128256
    base: float = 500_000.0
    tied: bool = False
    experts: MoEConfig | None = None


class Rotary(nn.Module):
    """The rotation angles ``p * base ** (-2 i / width)`` of the i-th pair of a head's features at position p."""

    frequencies: torch.Tensor

    def __init__(self, width: int, base: float) -> None:
        super().__init__()
        self.register_buffer("frequencies", base ** (torch.arange(0, -width, -2) / width), persistent=False)

    def forward(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosine and sine, ``[length, head width / 2]``."""
        positions = torch.arange(length, device=self.frequencies.device)
        angles = positions.unsqueeze(-1) * self.frequencies
        return angles.cos(), angles.sin()


def turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate the features i and i + width / 2 of ``[batch, heads, length, head width]`` by their angle."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class GroupedAttention(nn.Module):
    """Causal self-attention over ``[batch, length, width]`` with key and value heads that several query heads share."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        if config.width % config.heads or config.heads % config.key_heads:
            raise ValueError(
                f"the width {config.width} must be a multiple of the {config.heads} heads, and the number of heads a "
                f"multiple of the {config.key_heads} key heads"
            )
        self.head_width = config.width // config.heads
        self.shared_by = config.heads // config.key_heads
        key_width = config.key_heads * self.head_width
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, key_width, bias=False)
        self.v = nn.Linear(config.width, key_width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        query, key = turned(query, cosine, sine), turned(key, cosine, sine)
        mixed = F.scaled_dot_product_attention(query, self._shared(key), self._shared(value), is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _shared(self, x: torch.Tensor) -> torch.Tensor:
        """Repeat each key or value head for the query heads that share it."""
        return x.unsqueeze(2).expand(-1, -1, self.shared_by, -1, -1).flatten(1, 2)


class GatedFeedForward(nn.Module):
    """Two linear layers, with a third that gates the hidden features (SwiGLU)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    """A pre-normalised block; with experts it also returns their balancing loss."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.norm_1 = nn.RMSNorm(config.width, eps=1e-5)
        self.attn = GroupedAttention(config)
        self.norm_2 = nn.RMSNorm(config.width, eps=1e-5)
        if config.experts is None:
            self.mlp = GatedFeedForward(config.width, config.hidden)
        else:
            self.mlp = MoE(config.width, config.hidden, config.experts)

    def forward(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        x = x + self.attn(self.norm_1(x), cosine, sine)
        mixed, *balance = unpacked(self.mlp(self.norm_2(x)))
        return (x + mixed, *balance) if balance else x + mixed


class Llama(nn.Module):
    """
    A model from tokens ``[batch, length]`` to logits ``[batch, length, vocabulary]``, and experts' balancing losses.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.rotary = Rotary(config.width // config.heads, config.base)
        self.layers = nn.ModuleList(LlamaBlock(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(initialise_transformer)
        if config.tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        x, balance = through(self.layers, self.embed(tokens), *self.rotary(tokens.size(1)))
        scores = self.head(self.norm(x))
        return (scores, balance) if balance else scores


def llama_step(config: LlamaConfig, *, batch: int, length: int, seed: int = 0) -> TrainingStep:
    """Return the step of next-token prediction on random tokens."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(config.vocabulary, (batch, length + 1), generator=generator)
    return TrainingStep(
        model=partial(Llama, config),
        loss=partial(balanced, loss=token_cross_entropy) if config.experts else token_cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=3e-4, weight_decay=0.1),
        batch=(text[:, :-1].contiguous(), text[:, 1:].contiguous()),
    )
