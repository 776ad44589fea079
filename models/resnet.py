"""
ResNet: an image classifier of residual blocks with batch normalisation.

After He et al., "Deep Residual Learning for Image Recognition" (2016), with the stride of a block in its 3x3
convolution. The running statistics are buffers that every step updates. The batch statistics cover the global batch, on
any number of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from ..api.training_step import TrainingStep

EXPANSION = 4
"""The ratio of a block's output channels to the channels of its 3x3 convolution."""


@dataclass(frozen=True)
class ResNetConfig:
    """
    Sizes of a ResNet of bottleneck blocks; the defaults are the sizes of ResNet-50 (26 M parameters).

    Args:
        blocks: the number of blocks in each stage; every stage but the first halves the image.
        width: the channels of the first stage's 3x3 convolutions; they double from stage to stage.
    """

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    image: int = 224
    channels: int = 3
    classes: int = 1000


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class Bottleneck(nn.Module):
    """A block from ``[batch, inputs, n, n]`` to ``[batch, 4 * width, n / stride, n / stride]``."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv_1, self.norm_1 = _convolution(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv_2, self.norm_2 = _convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv_3, self.norm_3 = _convolution(width, outputs, 1), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm_1(self.conv_1(x)))
        y = F.relu(self.norm_2(self.conv_2(y)))
        return F.relu(self.norm_3(self.conv_3(y)) + self.shortcut(x))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class ResNet(nn.Module):
    """A model from images ``[batch, channels, image, image]`` to logits ``[batch, classes]``."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.enter = nn.Sequential(
            _convolution(config.channels, config.width, 7, 2),
            nn.BatchNorm2d(config.width),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        inputs = config.width
        for stage, count in enumerate(config.blocks):
            width = config.width * 2**stage
            for block in range(count):
                blocks.append(Bottleneck(inputs, width, stride=2 if stage and not block else 1))
                inputs = EXPANSION * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, config.classes)
        self.apply(_initialise)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.enter(images)).mean((2, 3)))


def resnet_step(config: ResNetConfig, *, batch: int, seed: int = 0) -> TrainingStep:
    """Return the step of classifying random images."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, config.channels, config.image, config.image, generator=generator)
    return TrainingStep(
        model=partial(ResNet, config),
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.05),
        batch=(images, torch.randint(config.classes, (batch,), generator=generator)),
    )
