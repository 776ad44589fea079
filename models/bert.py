"""
BERT: a bidirectional encoder trained to fill in masked tokens.

After Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2019), without its
next-sentence objective. With experts in every second layer it is HiDup's BERT-SGMoE and BERT-Switch (6.1) and HAP's
BERT-MoE (7.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from ..api.training_step import TrainingStep
from .moe import MoE, MoEConfig, balanced, through, unpacked
from .transformer import (
    AttentionForm,
    FeedForward,
    SelfAttention,
    every_second,
    initialise_transformer,
    token_cross_entropy,
)

IGNORED = -100
"""The label of a position that the loss ignores."""


@dataclass(frozen=True)
class BertConfig:
    """
    Sizes of a BERT; the defaults are the sizes of the base model (110 M parameters).

    Args:
        experts: a mixture of experts that replaces every second feed-forward.
        tied: whether the last layer shares the weight of the embedding.
        dropout: after the embeddings, in attention and after each half of a block; the paper has 0.1.
    """

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 30522
    positions: int = 512
    segments: int = 2
    attention: AttentionForm = "decomposed"
    experts: MoEConfig | None = None
    tied: bool = True
    dropout: float = 0.0


class BertEmbeddings(nn.Module):
    """The sum of token, position and segment embeddings, normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.segments = nn.Embedding(config.segments, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.size(1), device=tokens.device)
        return self.drop(self.norm(self.tokens(tokens) + self.positions(positions) + self.segments(segments)))


class PostNormBlock(nn.Module):
    """A block that normalises after each residual sum; with experts it also returns their balancing loss."""

    def __init__(self, config: BertConfig, experts: MoEConfig | None) -> None:
        super().__init__()
        width, hidden = config.width, 4 * config.width
        self.attn = SelfAttention(width, config.heads, causal=False, form=config.attention, dropout=config.dropout)
        self.ln_1 = nn.LayerNorm(width)
        self.mlp = FeedForward(width, hidden) if experts is None else MoE(width, hidden, experts)
        self.ln_2 = nn.LayerNorm(width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        x = self.ln_1(x + self.drop(self.attn(x, mask)))
        mixed, *balance = unpacked(self.mlp(x))
        x = self.ln_2(x + self.drop(mixed))
        return (x, *balance) if balance else x


class MaskedTokenHead(nn.Module):
    """A head from hidden states to logits over the vocabulary; its last layer may be tied to the embedding."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.act = nn.GELU()
        self.norm = nn.LayerNorm(config.width)
        self.decoder = nn.Linear(config.width, config.vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.norm(self.act(self.dense(x))))


class Bert(nn.Module):
    """
    A model from tokens ``[batch, length]`` to logits ``[batch, length, vocabulary]``, and experts' balancing losses.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(config)
        self.layers = nn.ModuleList(
            PostNormBlock(config, every_second(config.experts, layer)) for layer in range(config.layers)
        )
        self.head = MaskedTokenHead(config)
        self.apply(initialise_transformer)
        if config.tied:
            self.head.decoder.weight = self.embeddings.tokens.weight

    def forward(
        self, tokens: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        """
        Args:
            mask: boolean ``[batch, length]``, False at padding, which is excluded from attention.
        """
        x, balance = through(self.layers, self.embeddings(tokens, segments), mask[:, None, None, :])
        return (self.head(x), balance) if balance else self.head(x)


def bert_step(config: BertConfig, *, batch: int, length: int, seed: int = 0) -> TrainingStep:
    """Return the step of predicting 15 % of random tokens, in sequences of various lengths padded to `length`."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(config.vocabulary, (batch, length), generator=generator)
    lengths = torch.randint(length // 2, length + 1, (batch, 1), generator=generator)
    mask = torch.arange(length) < lengths
    chosen = (torch.rand(batch, length, generator=generator) < 0.15) & mask
    chosen[:, 0] = True
    segments = (torch.arange(length) >= lengths // 2).long()
    return TrainingStep(
        model=partial(Bert, config),
        loss=partial(balanced, loss=token_cross_entropy) if config.experts else token_cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=1e-4, weight_decay=0.01),
        batch={
            "tokens": tokens,
            "segments": segments,
            "mask": mask,
            "labels": torch.where(chosen, tokens, IGNORED),
        },
    )
