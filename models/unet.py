"""
U-Net: predicts a class per pixel, with skips from every level of the way down to the same level of the way up.

After Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation" (2015), with GELU in the
place of ReLU and convolutions of stride 2 instead of pooling. Divided into stages, its skips cross several stages. With
attention after the convolutions of its deep levels it is the U-Transformer of the cross-mesh paper (5.2), after Petit
et al., "U-Net Transformer" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from ..api.training_step import TrainingStep
from .transformer import SelfAttention


@dataclass(frozen=True)
class UNetConfig:
    """
    Sizes of a U-Net; the defaults are the published ones (32 M parameters).

    Args:
        widths: the channels of each level; every level but the first halves the image.
        attention: the number of deepest levels with self-attention over their pixels.
    """

    widths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    image: int = 512
    channels: int = 1
    classes: int = 2
    attention: int = 0
    heads: int = 8

    def attends(self, level: int) -> bool:
        """Return whether a level has attention."""
        return level >= len(self.widths) - self.attention


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Return two convolutions of 3x3 that keep the image's size."""
    first = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)
    second = nn.Conv2d(outputs, outputs, kernel_size=3, padding=1)
    return nn.Sequential(first, nn.GELU(), second, nn.GELU())


class PixelAttention(nn.Module):
    """Self-attention over the pixels of ``[batch, width, n, n]``, with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads, causal=False, form="fused")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixels = x.flatten(2).transpose(1, 2)
        return x + self.attn(self.norm(pixels)).transpose(1, 2).reshape(x.shape)


def _level(config: UNetConfig, level: int, inputs: int) -> nn.Module:
    """Return the layers of a level on the way down or up: convolutions and, in deep levels, attention."""
    convolutions = _convolutions(inputs, config.widths[level])
    if config.attends(level):
        convolutions.append(PixelAttention(config.widths[level], config.heads))
    return convolutions


class Down(nn.Module):
    """A level from ``[batch, channels of the level above, 2 n, 2 n]`` to ``[batch, channels of this level, n, n]``."""

    def __init__(self, config: UNetConfig, level: int) -> None:
        super().__init__()
        inputs = config.widths[level - 1]
        self.reduce = nn.Conv2d(inputs, inputs, kernel_size=2, stride=2)
        self.convolutions = _level(config, level, inputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolutions(self.reduce(x))


class Up(nn.Module):
    """A level from ``[batch, channels below, n, n]`` and its skip to ``[batch, channels of this level, 2 n, 2 n]``."""

    def __init__(self, config: UNetConfig, level: int) -> None:
        super().__init__()
        outputs = config.widths[level]
        self.enlarge = nn.ConvTranspose2d(config.widths[level + 1], outputs, kernel_size=2, stride=2)
        self.convolutions = _level(config, level, 2 * outputs)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return self.convolutions(torch.cat([skip, self.enlarge(x)], dim=1))


class UNet(nn.Module):
    """A model from images ``[batch, channels, image, image]`` to logits ``[batch, classes, image, image]``."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        widths, shrink = config.widths, 2 ** (len(config.widths) - 1)
        if config.image % shrink:
            raise ValueError(
                f"a U-Net of {len(widths)} levels needs images of a multiple of {shrink} pixels, got {config.image}"
            )
        self.enter = _convolutions(config.channels, widths[0])
        self.down = nn.ModuleList(Down(config, level) for level in range(1, len(widths)))
        self.up = nn.ModuleList(Up(config, level) for level in reversed(range(len(widths) - 1)))
        self.head = nn.Conv2d(widths[0], config.classes, kernel_size=1)
        self.apply(_initialise)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        levels = [self.enter(images)]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for up in self.up:
            x = up(x, levels.pop())
        return self.head(x)


def pixel_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of logits ``[batch, classes, h, w]`` over all pixels."""
    return F.cross_entropy(logits.permute(0, 2, 3, 1).flatten(0, 2), labels.flatten())


def unet_step(config: UNetConfig, *, batch: int, seed: int = 0) -> TrainingStep:
    """Return the step of segmenting random images by the brightness of their first channel."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, config.channels, config.image, config.image, generator=generator)
    labels = (images[:, 0].sigmoid() * config.classes).long()
    return TrainingStep(
        model=partial(UNet, config),
        loss=pixel_cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.01),
        batch=(images, labels),
    )
