"""
VGG: blocks of 3x3 convolutions and three linear layers.

After Simonyan and Zisserman, "Very Deep Convolutional Networks" (2015), configurations B and E. Most of its arithmetic
is in the convolutions and most of its parameters in the linear layers, so no single sharding suits both halves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from ..api.training_step import TrainingStep

VGG13 = (2, 2, 2, 2, 2)
VGG19 = (2, 2, 4, 4, 4)
"""The number of convolutions in each block; a block ends by halving the image."""


@dataclass(frozen=True)
class VGGConfig:
    """
    Sizes of a VGG; the defaults are the sizes of VGG-19 (144 M parameters).

    Args:
        convolutions: the number of convolutions in each block.
        widths: the channels of each block.
    """

    convolutions: tuple[int, ...] = VGG19
    widths: tuple[int, ...] = (64, 128, 256, 512, 512)
    hidden: int = 4096
    image: int = 224
    channels: int = 3
    classes: int = 1000
    batch_norm: bool = False
    dropout: float = 0.0


def _block(inputs: int, outputs: int, convolutions: int, *, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in range(convolutions):
        # A batch norm subtracts the mean: a bias before it has no effect, and its gradient is only rounding noise.
        channels = inputs if index == 0 else outputs
        layers.append(nn.Conv2d(channels, outputs, kernel_size=3, padding=1, bias=not batch_norm))
        if batch_norm:
            layers.append(nn.BatchNorm2d(outputs))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.MaxPool2d(kernel_size=2))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class VGG(nn.Module):
    """A model from images ``[batch, channels, image, image]`` to logits ``[batch, classes]``."""

    def __init__(self, config: VGGConfig) -> None:
        super().__init__()
        blocks = len(config.convolutions)
        shrink = 2**blocks
        if len(config.widths) != blocks or config.image % shrink:
            raise ValueError(
                f"a VGG of {blocks} blocks needs {blocks} widths and images of a multiple of {shrink} pixels, got "
                f"widths {config.widths} and {config.image} pixels"
            )
        channels = (config.channels, *config.widths)
        self.features = nn.Sequential(
            *(
                _block(channels[block], channels[block + 1], count, batch_norm=config.batch_norm)
                for block, count in enumerate(config.convolutions)
            )
        )
        pixels = (config.image // shrink) ** 2
        self.classifier = nn.Sequential(
            nn.Linear(config.widths[-1] * pixels, config.hidden),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, config.hidden),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, config.classes),
        )
        self.apply(_initialise)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).flatten(1))


def vgg_step(config: VGGConfig, *, batch: int, seed: int = 0) -> TrainingStep:
    """Return the step of classifying random images."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, config.channels, config.image, config.image, generator=generator)
    return TrainingStep(
        model=partial(VGG, config),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=1e-4, weight_decay=0.01),
        batch=(images, torch.randint(config.classes, (batch,), generator=generator)),
    )
