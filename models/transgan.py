"""
The generator of TransGAN: transformer blocks on a grid of pixels that grows from stage to stage.

After Jiang et al., "TransGAN" (2021), at the sizes of AMP (supplement 6.5.3). Its discriminator, which is a separate
model, is left out: here the generator learns to draw given images from given latent vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from ..api.training_step import TrainingStep
from .transformer import PreNormBlock, initialise_transformer

Growth = Literal["bicubic", "nearest", "shuffle"]
"""The way to double the sides of a grid: interpolation, repeated pixels, or a pixel shuffle of one pixel to four."""


@dataclass(frozen=True)
class TransGANConfig:
    """
    Sizes of the generator; the defaults are AMP's: twelve blocks on 9x9 pixels, twelve on 288x288.

    Args:
        depths: the number of blocks of each stage.
        growth: the method that doubles the grid before each later stage; a shuffle leaves a quarter of the features.
        bottom: the side of the first stage's grid.
        width: the features of a pixel in the first stage.
        window: the side of the windows within which pixels attend to each other, on grids wider than that.
        latent: the features of a latent vector.
    """

    depths: tuple[int, ...] = (12, 0, 0, 0, 0, 12)
    growth: tuple[Growth, ...] = ("bicubic", "bicubic", "shuffle", "shuffle", "shuffle")
    bottom: int = 9
    width: int = 1024
    heads: int = 4
    window: int = 18
    latent: int = 512
    channels: int = 3

    def __post_init__(self) -> None:
        if len(self.growth) != len(self.depths) - 1:
            raise ValueError(
                f"{len(self.depths)} stages need {len(self.depths) - 1} entries in growth, got {len(self.growth)}"
            )

    def widths(self) -> list[int]:
        """Return the features of a pixel in each stage."""
        return [self.width // 4 ** self.growth[:stage].count("shuffle") for stage in range(len(self.depths))]

    @property
    def image(self) -> int:
        """The side of the image."""
        return self.bottom * 2 ** len(self.growth)


def windows(x: torch.Tensor, size: int) -> torch.Tensor:
    """Rearrange a grid ``[batch, side, side, width]`` into ``[batch * windows, size * size, width]``."""
    x = x.unflatten(1, (-1, size)).unflatten(3, (-1, size))
    return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)


def grid(x: torch.Tensor, size: int, side: int) -> torch.Tensor:
    """Rearrange the windows that `windows` returns into the grid ``[batch, side, side, width]``."""
    x = x.reshape(-1, side // size, side // size, size, size, x.size(-1))
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def grown(x: torch.Tensor, how: Growth) -> torch.Tensor:
    """Double the sides of a grid ``[batch, side, side, width]``."""
    if how == "nearest":
        return x[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1).flatten(3, 4).flatten(1, 2)
    x = x.permute(0, 3, 1, 2)
    x = F.pixel_shuffle(x, 2) if how == "shuffle" else F.interpolate(x, scale_factor=2, mode="bicubic")
    return x.permute(0, 2, 3, 1)


class GridStage(nn.Module):
    """A stage of blocks on a grid ``[batch, side, side, width]``, with learned positions."""

    def __init__(self, config: TransGANConfig, side: int, width: int, depth: int) -> None:
        super().__init__()
        self.window = min(config.window, side)
        self.positions = nn.Parameter(torch.empty(1, side, side, width))
        self.blocks = nn.ModuleList(PreNormBlock(width, config.heads, causal=False, form="fused") for _ in range(depth))
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side, x = x.size(1), x + self.positions
        if not self.blocks:
            return x
        pixels = windows(x, self.window)
        for block in self.blocks:
            pixels = block(pixels)
        return grid(pixels, self.window, side)


class TransGANGenerator(nn.Module):
    """A model from latent vectors ``[batch, latent]`` to images ``[batch, channels, image, image]``."""

    def __init__(self, config: TransGANConfig) -> None:
        super().__init__()
        self.config = config
        self.enter = nn.Linear(config.latent, config.bottom**2 * config.width)
        self.stages = nn.ModuleList(
            GridStage(config, config.bottom * 2**number, width, depth)
            for number, (width, depth) in enumerate(zip(config.widths(), config.depths, strict=True))
        )
        self.leave = nn.Linear(config.widths()[-1], config.channels)
        self.apply(initialise_transformer)

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        bottom, first, *others = self.config.bottom, *self.stages
        x = first(self.enter(latent).reshape(-1, bottom, bottom, self.config.width))
        for how, stage in zip(self.config.growth, others, strict=True):
            x = stage(grown(x, how))
        return self.leave(x).permute(0, 3, 1, 2)


def transgan_step(config: TransGANConfig, *, batch: int, seed: int = 0) -> TrainingStep:
    """Return the step of drawing random images from random latent vectors."""
    generator = torch.Generator().manual_seed(seed)
    latent = torch.randn(batch, config.latent, generator=generator)
    images = torch.randn(batch, config.channels, config.image, config.image, generator=generator)
    return TrainingStep(
        model=partial(TransGANGenerator, config),
        loss=F.mse_loss,
        optimizer=partial(torch.optim.AdamW, lr=1e-4, weight_decay=0.01),
        batch=(latent, images),
    )
