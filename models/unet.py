"""
U-Net: an image to a class per pixel, with skips from every level of the way down to the same level of the way up.

After Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation" (2015), with GELU in the
place of ReLU and convolutions of stride 2 in the place of pooling. Divided into stages, its skips cross several.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from ..api.training_step import TrainingStep


@dataclass(frozen=True)
class UNetConfig:
    """
    Sizes of a U-Net; the defaults are the published ones (32 M parameters).

    Args:
        widths: the channels of each level; every level but the first halves the image.
    """

    widths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    image: int = 512
    channels: int = 1
    classes: int = 2


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions of 3x3 that keep the image's size."""
    first = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)
    second = nn.Conv2d(outputs, outputs, kernel_size=3, padding=1)
    return nn.Sequential(first, nn.GELU(), second, nn.GELU())


class Down(nn.Module):
    """``[batch, inputs, 2 n, 2 n]`` to ``[batch, outputs, n, n]``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(inputs, inputs, kernel_size=2, stride=2)
        self.convolutions = _convolutions(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolutions(self.reduce(x))


class Up(nn.Module):
    """``[batch, inputs, n, n]`` and a skip ``[batch, outputs, 2 n, 2 n]`` to what the skip is like."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(inputs, outputs, kernel_size=2, stride=2)
        self.convolutions = _convolutions(2 * outputs, outputs)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return self.convolutions(torch.cat([skip, self.enlarge(x)], dim=1))


class UNet(nn.Module):
    """Images ``[batch, channels, image, image]`` to logits ``[batch, classes, image, image]``."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        widths, shrink = config.widths, 2 ** (len(config.widths) - 1)
        if config.image % shrink:
            raise ValueError(
                f"a U-Net of {len(widths)} levels needs images of a multiple of {shrink} pixels, got {config.image}"
            )
        pairs = list(itertools.pairwise(widths))
        self.enter = _convolutions(config.channels, widths[0])
        self.down = nn.ModuleList(Down(wide, deep) for wide, deep in pairs)
        self.up = nn.ModuleList(Up(deep, wide) for wide, deep in reversed(pairs))
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
    """The mean over all pixels of the cross-entropy of logits ``[batch, classes, h, w]``."""
    return F.cross_entropy(logits.permute(0, 2, 3, 1).flatten(0, 2), labels.flatten())


def unet_step(config: UNetConfig, *, batch: int, seed: int = 0) -> TrainingStep:
    """Segmentation of random images by the brightness of their first channel."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, config.channels, config.image, config.image, generator=generator)
    labels = (images[:, 0].sigmoid() * config.classes).long()
    return TrainingStep(
        model=partial(UNet, config),
        loss=pixel_cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.01),
        batch=(images, labels),
    )
