"""
GPT-2: a causal language model with learned positions, pre-normalisation and a tied output layer.

After Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from ..api.training_step import TrainingStep
from .transformer import AttentionForm, PreNormBlock, initialise_transformer, token_cross_entropy


@dataclass(frozen=True)
class GPT2Config:
    """Sizes of a GPT-2; the defaults are the sizes of the smallest published model (124 M parameters)."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024
    dropout: float = 0.0
    attention: AttentionForm = "fused"


class GPT2(nn.Module):
    """A model from tokens ``[batch, length]`` to logits ``[batch, length, vocabulary]``."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.wpe = nn.Embedding(config.positions, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(
            PreNormBlock(
                config.width,
                config.heads,
                causal=True,
                form=config.attention,
                approximate="tanh",
                dropout=config.dropout,
            )
            for _ in range(config.layers)
        )
        self.ln_f = nn.LayerNorm(config.width)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(initialise_transformer)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.drop(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def gpt2_step(config: GPT2Config, *, batch: int, length: int, seed: int = 0) -> TrainingStep:
    """Return the step of next-token prediction on random tokens."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(config.vocabulary, (batch, length + 1), generator=generator)
    return TrainingStep(
        model=partial(GPT2, config),
        loss=token_cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=3e-4, weight_decay=0.1),
        batch=(text[:, :-1].contiguous(), text[:, 1:].contiguous()),
    )
