"""
Vision Transformer: an encoder over image patches with a class token.

After Dosovitskiy et al., "An Image is Worth 16x16 Words" (2021). With experts in every second layer it is HiDup's
ViT-SGMoE and ViT-Switch (6.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from ..api.training_step import TrainingStep
from .moe import MoEConfig, balanced, through
from .transformer import AttentionForm, PreNormBlock, every_second, initialise_transformer


@dataclass(frozen=True)
class ViTConfig:
    """
    Sizes of a ViT; the defaults are the sizes of the base model (86 M parameters).

    Args:
        experts: a mixture of experts that replaces every second feed-forward.
        dropout: after the embeddings, in attention and after each half of a block; the paper has 0.1.
    """

    layers: int = 12
    width: int = 768
    heads: int = 12
    image: int = 224
    patch: int = 16
    channels: int = 3
    classes: int = 1000
    attention: AttentionForm = "fused"
    experts: MoEConfig | None = None
    dropout: float = 0.0


class ViT(nn.Module):
    """
    A model from images ``[batch, channels, image, image]`` to logits ``[batch, classes]``, and experts' balancing
    losses.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        if config.image % config.patch:
            raise ValueError(f"an image of {config.image} pixels is not a multiple of the patch size {config.patch}")
        patches = (config.image // config.patch) ** 2
        self.patch = nn.Conv2d(config.channels, config.width, kernel_size=config.patch, stride=config.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.positions = nn.Parameter(torch.empty(1, patches + 1, config.width))
        self.layers = nn.ModuleList(
            PreNormBlock(
                config.width,
                config.heads,
                causal=False,
                form=config.attention,
                dropout=config.dropout,
                experts=every_second(config.experts, layer),
            )
            for layer in range(config.layers)
        )
        self.drop = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.classes)
        self.apply(initialise_transformer)
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        patches = self.patch(images).flatten(2).transpose(1, 2)
        class_tokens = self.class_token.expand(images.size(0), -1, -1)
        x = self.drop(torch.cat([class_tokens, patches], dim=1) + self.positions)
        x, balance = through(self.layers, x)
        scores = self.head(self.norm(x)[:, 0])
        return (scores, balance) if balance else scores


def vit_step(config: ViTConfig, *, batch: int, seed: int = 0) -> TrainingStep:
    """Return the step of classifying random images."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, config.channels, config.image, config.image, generator=generator)
    return TrainingStep(
        model=partial(ViT, config),
        loss=partial(balanced, loss=F.cross_entropy) if config.experts else F.cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=3e-4, weight_decay=0.05),
        batch=(images, torch.randint(config.classes, (batch,), generator=generator)),
    )
