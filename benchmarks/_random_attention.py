"""
Random models with common ways to write attention and to arrange batches, each generated from its number alone.

A model is a front (vectors, tokens, or patches of an image), two or three random blocks of `BLOCKS`, and a head with a
loss. Blocks place the batch dim differently: first, after time, merged with time or heads on either side, or next to a
second batch. Some blocks mix the rows of a batch and therefore need the whole batch; `WHOLE` names them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from shardwright.api.training_step import TrainingStep

Block = Callable[[random.Random, int, int], nn.Module]
"""(generator, width, heads) -> a module that maps [batch, time, width] to the same shape."""


class Lambda(nn.Module):
    """A function as a module, with the modules that it uses."""

    def __init__(self, function: Callable[..., torch.Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleDict(modules)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, **self.parts)


def _either(is_first: bool, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function of [batch, time, width], from one that may take time first."""
    return function if is_first else lambda x, **parts: function(x.transpose(0, 1), **parts).transpose(0, 1)


def _residual(function: Callable[..., torch.Tensor], width: int, **modules: nn.Module) -> nn.Module:
    """Return the module x + function(norm(x))."""
    return Lambda(lambda x, norm, **parts: x + function(norm(x), **parts), norm=nn.LayerNorm(width), **modules)


def _multihead(generator: random.Random, width: int, heads: int) -> nn.Module:
    """Return nn.MultiheadAttention: batch first or second, with or without weights, dropout and a mask."""
    is_first, weights = generator.random() < 0.6, generator.random() < 0.3
    dropout, masked = generator.choice((0.0, 0.0, 0.2)), generator.random() < 0.3
    attention = nn.MultiheadAttention(width, heads, batch_first=is_first, dropout=dropout)

    def run(x: torch.Tensor, attention: nn.Module) -> torch.Tensor:
        length = x.shape[1 if is_first else 0]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1) if masked else None
        return attention(x, x, x, need_weights=weights, attn_mask=mask)[0]

    return _residual(_either(is_first, run), width, attention=attention)


def _cross(generator: random.Random, width: int, heads: int) -> nn.Module:
    """Return nn.MultiheadAttention with keys and values from another sequence."""
    is_first = generator.random() < 0.5
    attention = nn.MultiheadAttention(width, heads, batch_first=is_first)

    def run(x: torch.Tensor, attention: nn.Module, other: nn.Module) -> torch.Tensor:
        memory = other(x)
        return attention(x, memory, memory, need_weights=False)[0]

    return _residual(_either(is_first, run), width, attention=attention, other=nn.Linear(width, width))


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spelling: str) -> torch.Tensor:
    """Return attention on [..., time, width of a head], fused or written out."""
    if spelling == "fused":
        return F.scaled_dot_product_attention(q, k, v)
    if spelling == "causal":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
    return (F.dropout(weights, 0.1) if spelling == "dropout" else weights) @ v


def _unpacked(generator: random.Random, width: int, heads: int) -> nn.Module:
    """Return attention with queries, keys and values from one linear layer, unpacked as in ViT, GPT and others."""
    how, spelling = generator.randrange(7), generator.choice(("fused", "causal", "plain", "dropout"))

    def run(x: torch.Tensor, qkv: nn.Module, out: nn.Module) -> torch.Tensor:
        b, t, c = x.shape
        if how == 0:
            q, k, v = qkv(x).reshape(b, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4).unbind(0)
        elif how == 1:
            packed = qkv(x).reshape(b, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4)
            q, k, v = packed[0], packed[1], packed[2]
        elif how == 2:
            q, k, v = (part.view(b, t, heads, c // heads).transpose(1, 2) for part in qkv(x).split(c, dim=2))
        elif how == 3:
            q, k, v = (part.view(b, t, heads, c // heads).transpose(1, 2) for part in qkv(x).chunk(3, dim=-1))
        elif how == 4:
            q, k, v = qkv(x).view(b, t, heads, 3, c // heads).permute(3, 0, 2, 1, 4)
        elif how == 5:
            packed = qkv(x).view(b, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4).reshape(3, b * heads, t, c // heads)
            q, k, v = packed.unbind(0)
        else:
            time_first = qkv(x.transpose(0, 1)).view(t, b * heads, 3, c // heads).permute(2, 1, 0, 3)
            q, k, v = time_first.unbind(0)
        y = _attend(q, k, v, spelling).reshape(b, heads, t, c // heads)
        return out(y.transpose(1, 2).reshape(b, t, c))

    return _residual(run, width, qkv=nn.Linear(width, 3 * width), out=nn.Linear(width, width))


def _einsum(generator: random.Random, width: int, heads: int) -> nn.Module:
    """Return attention written as einsums."""

    def run(x: torch.Tensor, q: nn.Module, k: nn.Module, v: nn.Module) -> torch.Tensor:
        projected = (part(x).view(*x.shape[:2], heads, -1) for part in (q, k, v))
        queries, keys, values = projected
        weights = torch.einsum("bihd,bjhd->bhij", queries, keys).softmax(-1)
        return torch.einsum("bhij,bjhd->bihd", weights, values).flatten(2)

    return _residual(run, width, **{name: nn.Linear(width, width) for name in "qkv"})


def _time_major(generator: random.Random, width: int, heads: int) -> nn.Module:
    """Return a network on [time * batch, width]."""
    dropout = generator.choice((0.0, 0.2))

    def run(x: torch.Tensor, net: nn.Module) -> torch.Tensor:
        b, t, c = x.shape
        y = net(x.transpose(0, 1).reshape(t * b, c))
        return y.view(t, b, c).transpose(0, 1)

    net = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width))
    return _residual(run, width, net=net)


def _encoder(generator: random.Random, width: int, heads: int) -> nn.Module:
    """Return nn.TransformerEncoderLayer or nn.TransformerDecoderLayer, with the batch first or second."""
    is_first, norm_first = generator.random() < 0.5, generator.random() < 0.5
    dropout, decodes = generator.choice((0.0, 0.1)), generator.random() < 0.3
    kind = nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer
    layer = kind(width, heads, 2 * width, dropout, batch_first=is_first, norm_first=norm_first)

    def run(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        return layer(x, x) if decodes else layer(x)

    return Lambda(_either(is_first, run), layer=layer)


def _two_views(generator: random.Random, width: int, heads: int) -> nn.Module:
    """Return a network that runs once on two or three concatenated versions of the batch."""
    count, how = generator.choice((2, 2, 3)), generator.randrange(3)

    def run(x: torch.Tensor, net: nn.Module) -> torch.Tensor:
        versions = [x * (1 + 0.5 * i) for i in range(count)]
        if how == 0:
            return sum(net(torch.cat(versions)).chunk(count))  # type: ignore[return-value]
        if how == 1:
            return net(torch.stack(versions).flatten(0, 1)).view(count, *x.shape).mean(0)
        y = net(x.repeat(count, 1, 1))
        return y[: len(x)] + y[-len(x) :]

    return _residual(run, width, net=nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)))


def _convolved(generator: random.Random, width: int, heads: int) -> nn.Module:
    """Return a convolution over time, or over the width of each time step with time merged into the batch."""
    if generator.random() < 0.5:
        convolution = nn.Conv1d(width, width, 3, padding=1, groups=generator.choice((1, 2)))
        return _residual(lambda x, conv: conv(x.transpose(1, 2)).transpose(1, 2), width, conv=convolution)

    def run(x: torch.Tensor, conv: nn.Module) -> torch.Tensor:
        b, t, c = x.shape
        y = conv(x.transpose(0, 1).reshape(t * b, 1, c))
        return y.reshape(t, b, c).permute(1, 0, 2)

    return _residual(run, width, conv=nn.Conv1d(1, 1, 3, padding=1))


def _mixed(generator: random.Random, width: int, heads: int) -> nn.Module:
    """Return a block that moves values along time: a roll, a flip, a running sum, or windows of two time steps."""
    how = generator.randrange(4)

    def run(x: torch.Tensor, net: nn.Module) -> torch.Tensor:
        b, t, c = x.shape
        if how == 0:
            return net(x.roll(1, dims=1))
        if how == 1:
            return net(x.flip(1))
        if how == 2:
            return net(x.transpose(0, 1).cumsum(0).transpose(0, 1))
        windows = F.pad(x, (0, 0, 0, t % 2)).view(b, -1, 2, c).permute(1, 0, 2, 3).reshape(-1, 2, c)
        y = _attend(windows, windows, windows, "plain").view(-1, b, 2, c).permute(1, 0, 2, 3)
        return net(y.reshape(b, -1, c)[:, :t])

    return _residual(run, width, net=nn.Linear(width, width))


def _batch_norm(generator: random.Random, width: int, heads: int) -> nn.Module:
    """Return a batch-norm, whose statistics need all rows."""
    return Lambda(lambda x, norm: norm(x.transpose(1, 2)).transpose(1, 2), norm=nn.BatchNorm1d(width))


def _among_rows(generator: random.Random, width: int, heads: int) -> nn.Module:
    """Return attention over the rows of the batch."""

    def run(x: torch.Tensor, net: nn.Module) -> torch.Tensor:
        rows = x.transpose(0, 1)
        return net(_attend(rows, rows, rows, "plain")).transpose(0, 1)

    return _residual(run, width, net=nn.Linear(width, width))


BLOCKS: dict[str, tuple[float, Block]] = {
    "multihead": (3.0, _multihead),
    "cross": (1.0, _cross),
    "unpacked": (4.0, _unpacked),
    "einsum": (1.0, _einsum),
    "time-major": (1.5, _time_major),
    "encoder": (1.5, _encoder),
    "two views": (1.5, _two_views),
    "convolved": (1.0, _convolved),
    "mixed": (1.0, _mixed),
    "batch-norm": (0.2, _batch_norm),
    "among rows": (0.2, _among_rows),
}
"""Weight in the random choice, and maker, of each block."""

WHOLE = frozenset({"batch-norm", "among rows"})
"""Blocks whose result for a row depends on other rows of the batch."""


class Model(nn.Module):
    """A front, blocks, and a head."""

    def __init__(self, front: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.front, self.blocks, self.head = front, nn.ModuleList(blocks), head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.front(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Patches(nn.Module):
    """Patches of an image with a class token in front and positions."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, count + 1, width) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions


def front(generator: random.Random, width: int, batch: int) -> tuple[str, nn.Module, Callable[[], torch.Tensor]]:
    """Return the kind of a random front, the front, and a maker of its inputs."""
    kind, length = generator.choice(("vectors", "tokens", "patches")), generator.choice((2, 3, 4, 6))
    if kind == "vectors":
        return kind, nn.Linear(5, width), lambda: torch.randn(batch, length, 5)
    if kind == "tokens":
        return kind, nn.Embedding(13, width), lambda: torch.randint(0, 13, (batch, length))
    return kind, Patches(width, 4), lambda: torch.randn(batch, 3, 8, 8)


def _cross_entropy_of_moments(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of a language model whose logits have time first."""
    logits = output.transpose(0, 1)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.t().reshape(-1))


_LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross-entropy": F.cross_entropy,
    "smoothed": partial(F.cross_entropy, label_smoothing=0.1),
    "squares": F.mse_loss,
    "moments": _cross_entropy_of_moments,
    "mean": lambda output, labels: (output * labels.unsqueeze(-1)).square().mean(),
}
_CLASSES = 7


def _head(generator: random.Random, width: int) -> tuple[str, nn.Module]:
    loss = generator.choice(sorted(_LOSSES))
    pool = generator.choice(("mean", "first", "last of time first"))
    linear = nn.Linear(width, _CLASSES)
    if loss == "moments":
        return loss, linear

    def run(x: torch.Tensor, linear: nn.Module) -> torch.Tensor:
        if pool == "mean":
            return linear(x.mean(1))
        return linear(x[:, 0] if pool == "first" else x.transpose(0, 1)[-1])

    return loss, Lambda(run, linear=linear)


def random_attention(number: int) -> tuple[str, tuple[str, ...], Callable[[], TrainingStep]]:
    """Return a description, the kinds of the blocks in order, and a maker of the training step of `number`."""
    generator = random.Random(f"attention {number}")
    names = sorted(BLOCKS)
    kinds = generator.choices(names, [BLOCKS[name][0] for name in names], k=generator.choice((2, 2, 3)))
    state = generator.getstate()

    def make() -> TrainingStep:
        drawn = random.Random()
        drawn.setstate(state)
        heads = drawn.choice((2, 4))
        width, batch = heads * drawn.choice((2, 4)), drawn.choice((4, 6, 8, 12))
        _, first, inputs = front(drawn, width, batch)
        blocks = [BLOCKS[kind][1](drawn, width, heads) for kind in kinds]
        loss, head = _head(drawn, width)
        x = inputs()
        with torch.no_grad():
            model = Model(first, blocks, head)
            shape = model(x).shape
        labels = torch.randn(shape) if loss == "squares" else torch.randint(0, _CLASSES, shape[:-1])
        return TrainingStep(model, _LOSSES[loss], partial(torch.optim.SGD, lr=0.1), (x, labels))

    return f"{number}: {', '.join(kinds)}", tuple(kinds), make
