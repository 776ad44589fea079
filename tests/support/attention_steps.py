"""Training steps of two-block models that write attention in the two most common ways."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from shardwright.api.training_step import TrainingStep

WIDTH, HEADS, ROWS, CLASSES = 16, 2, 8, 5


class MultiheadBlocks(nn.Module):
    """Two layers of nn.MultiheadAttention; without `batch_first`, the model transposes before and after them."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.blocks = nn.ModuleList(nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        for block in self.blocks:
            x = x + block(x, x, x, need_weights=False)[0]
        x = x if self.batch_first else x.transpose(0, 1)
        return self.head(x.mean(1))


class VisionBlock(nn.Module):
    """A block of timm's vision transformer: one layer computes queries, keys and values; a permutation unpacks them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches, a class token, two blocks and a head on the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, 5, WIDTH) * 0.02)
        self.blocks = nn.Sequential(VisionBlock(), VisionBlock())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def _step(model: nn.Module, x: torch.Tensor) -> TrainingStep:
    labels = torch.randint(0, CLASSES, (ROWS,))
    return TrainingStep(model, F.cross_entropy, partial(torch.optim.SGD, lr=0.1, momentum=0.9), (x, labels))


def multihead_step() -> TrainingStep:
    """Return a step with `batch_first=True`."""
    return _step(MultiheadBlocks(batch_first=True), torch.randn(ROWS, 3, WIDTH))


def time_first_step() -> TrainingStep:
    """Return a step with `batch_first=False`: the sequence is dim 0, the batch dim 1."""
    return _step(MultiheadBlocks(batch_first=False), torch.randn(ROWS, 3, WIDTH))


def vision_step() -> TrainingStep:
    """Return a step of the vision transformer as in timm."""
    return _step(VisionTransformer(), torch.randn(ROWS, 3, 8, 8))


STEPS = {"multihead": multihead_step, "time first": time_first_step, "vision": vision_step}
