"""
Random models of layers, each generated from its number alone, with norms, views, buffers and dtypes of common models.

A model is a front that gives vectors, tokens or images, two to four blocks from the table of that form, and a loss.
Sizes come from a small set, so that unrelated dims are often equal. Blocks that compute across the rows of a batch are
marked, since a batch cannot be split in models that have one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from shardwright.api.training_step import TrainingStep

ROWS = 8
SIZES = (4, 8, 12)


class Lambda(nn.Module):
    """A function of a value, as a module with the modules, parameters and buffers that it uses."""

    def __init__(
        self,
        function: Callable[..., torch.Tensor],
        buffers: dict[str, torch.Tensor] | None = None,
        persistent: bool = True,
        **parts: nn.Module | nn.Parameter,
    ) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)
        for name, value in (buffers or {}).items():
            self.register_buffer(name, value, persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


@dataclass(frozen=True)
class Block:
    """
    A kind of block.

    Args:
        make: function from a generator and the shape of a row to a module that keeps the shape.
        whole: whether a row's result depends on other rows.
        coarse: relative error due to explicit dtypes of the block.
    """

    make: Callable[[random.Random, Sequence[int]], nn.Module]
    whole: bool = False
    coarse: float = 0.0


def _frozen(module: nn.Module, *names: str) -> nn.Module:
    for name in names:
        getattr(module, name).requires_grad_(False)
    return module


def _linear(g: random.Random, shape: Sequence[int]) -> nn.Module:
    width, act = shape[-1], g.choice((nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Softplus, nn.Mish, nn.ELU))
    hidden = g.choice((*SIZES, width))
    return nn.Sequential(nn.Linear(width, hidden, bias=g.random() < 0.7), act(), nn.Linear(hidden, width))


def _gated(g: random.Random, shape: Sequence[int]) -> nn.Module:
    width = shape[-1]
    way = g.choice(("glu", "chunk", "split", "unbind"))

    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        if way == "glu":
            return x + F.glu(y, -1)
        if way == "chunk":
            a, b = y.chunk(2, -1)
        elif way == "split":
            a, b = y.split([width, width], dim=-1)
        else:
            a, b = y.unflatten(-1, (2, width)).unbind(-2)
        return x + F.silu(a) * b

    return Lambda(run, up=nn.Linear(width, 2 * width))


def _normed(g: random.Random, shape: Sequence[int]) -> nn.Module:
    width = shape[-1]
    norm = g.choice(
        (
            lambda: nn.LayerNorm(width, elementwise_affine=g.random() < 0.7),
            lambda: nn.RMSNorm(width),
            lambda: nn.LayerNorm(list(shape)),
            lambda: _frozen(nn.LayerNorm(width), "weight", "bias"),
            lambda: Lambda(lambda self, x: F.normalize(x, dim=-1) * self.scale, scale=nn.Parameter(torch.ones(()))),
            lambda: Lambda(lambda self, x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3)),
            lambda: Lambda(lambda self, x: x / (1 + torch.linalg.vector_norm(x, dim=-1, keepdim=True))),
        )
    )()
    return nn.Sequential(norm, nn.Linear(width, width))


def _weight_normed(g: random.Random, shape: Sequence[int]) -> nn.Module:
    layer = nn.Linear(shape[-1], shape[-1])
    wrap = g.choice((nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm))
    return wrap(layer)


def _views(g: random.Random, shape: Sequence[int]) -> nn.Module:
    width = shape[-1]
    halves = width // 2
    ways = (
        lambda x: x.reshape(*x.shape[:-1], 2, halves).transpose(-1, -2).reshape(x.shape),
        lambda x: x.flatten(0, -2).view(-1, width).view(x.shape),
        lambda x: x.reshape(x.shape[0], -1).view(x.shape[0], -1, 2).flip(-1).reshape(x.shape),
        lambda x: torch.cat([x[..., halves:], x[..., :halves]], -1),
        lambda x: x.unsqueeze(1).expand(-1, 3, *x.shape[1:]).mean(1),
        lambda x: x.roll(1, -1) + x.flip(-1),
        lambda x: torch.stack([x, -x], 1).amax(1),
        lambda x: x.repeat(1, *[1] * (x.dim() - 2), 2)[..., width // 2 : width // 2 + width],
        lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0) * 2,
        lambda x: x.reshape(2, -1, *x.shape[1:]).flatten(0, 1),
        lambda x: x.swapaxes(0, 1).reshape(x.shape[1], x.shape[0], -1).swapaxes(0, 1).reshape(x.shape),
        lambda x: F.pad(x, (1, 1))[..., 1:-1].cumsum(-1),
        lambda x: torch.einsum("b...i,b...i->b...", x, x).unsqueeze(-1) * x,
        lambda x: x.narrow(-1, 0, halves).repeat_interleave(2, -1),
        lambda x: x.unfold(-1, 2, 2).flatten(-2),
    )
    first, second = g.choice(ways), g.choice(ways)
    return nn.Sequential(Lambda(lambda self, x: second(first(x)).tanh()), nn.Linear(width, width))


def _buffered(g: random.Random, shape: Sequence[int]) -> nn.Module:
    width = shape[-1]

    def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) / self.calls.clamp(max=2).to(x.dtype)

    def rotary(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.table.cos() + x.flip(-1) * self.table.sin()

    def scheduled(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.scale.mul_(0.5).add_(0.25)
        return self.linear(x) * self.scale

    table = torch.linspace(0, 1, width)
    return g.choice(
        (
            lambda: Lambda(counted, {"calls": torch.zeros((), dtype=torch.long)}, linear=nn.Linear(width, width)),
            lambda: Lambda(rotary, {"table": table}, persistent=False, linear=nn.Linear(width, width)),
            lambda: Lambda(scheduled, {"scale": torch.ones(())}, linear=nn.Linear(width, width)),
        )
    )()


def _averaged(g: random.Random, shape: Sequence[int]) -> nn.Module:
    """Return a block with a buffer that is updated from the batch."""

    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.detach().flatten(0, -2).mean(0).to(self.mean.dtype), 0.1)
        return self.linear(x - self.mean)

    width = shape[-1]
    return Lambda(run, {"mean": torch.zeros(width)}, linear=nn.Linear(width, width))


def _cast(g: random.Random, shape: Sequence[int]) -> nn.Module:
    width = shape[-1]
    dtype, elementwise = g.choice((torch.bfloat16, torch.float32, torch.float64)), g.random() < 0.5

    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.to(dtype).sigmoid() if elementwise else F.linear(x.to(dtype), self.linear.weight.to(dtype))
        return x + y.to(x.dtype) * self.scale

    return Lambda(run, linear=nn.Linear(width, width), scale=nn.Parameter(torch.tensor(0.5)))


def _chosen(g: random.Random, shape: Sequence[int]) -> nn.Module:
    width = shape[-1]
    ways = (
        lambda x, y: torch.where(x > 0, y, -0.1 * x),
        lambda x, y: y.masked_fill(x < -0.5, 0.0),
        lambda x, y: torch.maximum(y, x).clamp(-3, 3),
        lambda x, y: y * (x.argmax(-1, keepdim=True) == 0),
        lambda x, y: y.index_select(-1, torch.arange(width - 1, -1, -1)),
        lambda x, y: y.gather(-1, x.argsort(-1)),
        lambda x, y: torch.addcmul(x, y, y.tanh(), value=0.5),
        lambda x, y: y - y.logsumexp(-1, keepdim=True),
        lambda x, y: y.softmax(-1) * width + y.log_softmax(-1) * 0.1,
        lambda x, y: torch.lerp(x, y, 0.3).abs().sqrt(),
        lambda x, y: y * torch.ones_like(x).triu() if x.dim() == 3 else y,
        lambda x, y: (y**2).sum(-1, keepdim=True).rsqrt() * y,
        lambda x, y: y.sort(-1).values,
        lambda x, y: torch.atan2(y, x.abs() + 1),
    )
    run = g.choice(ways)
    return Lambda(lambda self, x: run(x, self.linear(x)), linear=nn.Linear(width, width))


def _batch_normed(g: random.Random, shape: Sequence[int]) -> nn.Module:
    width = shape[-1]
    kind = g.choice((dict[str, object](), {"affine": False}, {"track_running_stats": False}))
    norm = nn.BatchNorm1d(width, **kind)  # type: ignore[arg-type]
    if not kind and g.random() < 0.5:
        _frozen(norm, "weight")
    return Lambda(lambda self, x: self.norm(x.flatten(0, -2)).view(x.shape), norm=norm)


def _frozen_batch_norm(g: random.Random, shape: Sequence[int]) -> nn.Module:
    norm = nn.BatchNorm1d(shape[-1]).eval()
    norm.train = lambda mode=True: norm  # type: ignore[method-assign]
    return Lambda(lambda self, x: self.norm(x.flatten(0, -2)).view(x.shape), norm=norm)


def _attention(g: random.Random, shape: Sequence[int]) -> nn.Module:
    width, heads, causal = shape[-1], g.choice((1, 2, 4)), g.random() < 0.5

    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return x + self.out(y.transpose(1, 2).flatten(2))

    return Lambda(run, qkv=nn.Linear(width, 3 * width), out=nn.Linear(width, width))


def _mixed(g: random.Random, shape: Sequence[int]) -> nn.Module:
    """Return a block that mixes tokens by a matrix, a convolution or cumulative sums."""
    length, width = shape
    return g.choice(
        (
            lambda: Lambda(lambda self, x: x + self.mix(x.transpose(1, 2)).mT, mix=nn.Linear(length, length)),
            lambda: Lambda(lambda self, x: x + self.mix(x.mT).mT, mix=nn.Conv1d(width, width, 3, padding=1)),
            lambda: Lambda(lambda self, x: self.mix(x.cumsum(1) / length), mix=nn.Linear(width, width)),
            lambda: Lambda(lambda self, x: x + self.table[None] * x.mean(1, keepdim=True),
                           table=nn.Parameter(torch.randn(length, width))),
            lambda: Lambda(lambda self, x: torch.bmm(x.softmax(1).mT, x).mean(-1)[:, None] + self.mix(x),
                           mix=nn.Linear(width, width)),
        )
    )()  # fmt: skip


def _convolved(g: random.Random, shape: Sequence[int]) -> nn.Module:
    channels = shape[0]
    groups = g.choice((1, 2, channels))
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, groups=groups), g.choice((nn.ReLU, nn.GELU))())


def _image_normed(g: random.Random, shape: Sequence[int]) -> nn.Module:
    channels = shape[0]
    norm = g.choice((nn.GroupNorm(2, channels), nn.InstanceNorm2d(channels, affine=True), nn.GroupNorm(1, channels)))
    return nn.Sequential(norm, nn.Conv2d(channels, channels, 1))


def _image_batch_normed(g: random.Random, shape: Sequence[int]) -> nn.Module:
    channels = shape[0]
    norm = nn.BatchNorm2d(channels, affine=g.random() < 0.7)
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=g.random() < 0.5), norm, nn.ReLU())


def _pooled(g: random.Random, shape: Sequence[int]) -> nn.Module:
    channels, size, _ = shape
    ways: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda x: F.interpolate(F.avg_pool2d(x, 2), size=(size, size)),
        lambda x: F.max_pool2d(x, 3, stride=1, padding=1),
        lambda x: x * torch.sigmoid(F.adaptive_avg_pool2d(x, 1)),
        lambda x: F.pixel_shuffle(F.pixel_unshuffle(x, 2), 2).neg(),
        lambda x: x.flatten(2).mT.reshape(x.shape[0], size, size, channels).permute(0, 3, 1, 2),
    )
    run = g.choice(ways)
    return nn.Sequential(Lambda(lambda self, x: run(x)), nn.Conv2d(channels, channels, 1))


ANY: dict[str, Block] = {
    "linear": Block(_linear),
    "gated": Block(_gated),
    "norm": Block(_normed),
    "weight norm": Block(_weight_normed),
    "views": Block(_views),
    "buffer": Block(_buffered),
    "average": Block(_averaged, whole=True),
    "cast": Block(_cast, coarse=2e-2),
    "choice": Block(_chosen),
    "batch norm": Block(_batch_normed, whole=True),
    "frozen batch norm": Block(_frozen_batch_norm),
}
TOKENS = {"attention": Block(_attention), "mixed": Block(_mixed)}
IMAGES = {
    "conv": Block(_convolved),
    "image norm": Block(_image_normed),
    "image batch norm": Block(_image_batch_normed, whole=True),
    "pool": Block(_pooled),
}


@dataclass(frozen=True)
class Loss:
    """
    A kind of loss.

    Args:
        of: function from scores [rows, classes] and targets to the loss.
        targets: function that draws targets for numbers of rows and classes.
    """

    of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    targets: Callable[[int, int], torch.Tensor]


def _labels(rows: int, classes: int) -> torch.Tensor:
    return torch.randint(classes, (rows,))


def _some_ignored(rows: int, classes: int) -> torch.Tensor:
    return torch.where(torch.rand(rows) < 0.3, -100, _labels(rows, classes))


def _weights(scores: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, scores.shape[-1], dtype=scores.dtype)


def _masked(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    selected = (targets > 0).to(scores.dtype)
    return ((scores - targets).pow(2) * selected).sum() / selected.sum().clamp(min=1)


LOSSES: dict[str, Loss] = {
    "cross-entropy": Loss(F.cross_entropy, _labels),
    "ignored": Loss(F.cross_entropy, _some_ignored),
    "smoothed": Loss(partial(F.cross_entropy, label_smoothing=0.1), _some_ignored),
    "weighted": Loss(lambda s, t: F.cross_entropy(s, t, weight=_weights(s)), _labels),
    "weighted, smoothed": Loss(
        lambda s, t: F.cross_entropy(s, t, weight=_weights(s), label_smoothing=0.2), _some_ignored
    ),
    "smoothed sum": Loss(partial(F.cross_entropy, label_smoothing=0.1, reduction="sum"), _labels),
    "soft targets": Loss(lambda s, t: F.cross_entropy(s, t.to(s.dtype)), lambda n, c: torch.rand(n, c).softmax(-1)),
    "mse": Loss(lambda s, t: F.mse_loss(s, t.to(s.dtype)), torch.randn),
    "smooth l1": Loss(lambda s, t: F.smooth_l1_loss(s, t.to(s.dtype), beta=0.5), torch.randn),
    "huber sum": Loss(lambda s, t: F.huber_loss(s, t.to(s.dtype), reduction="sum"), torch.randn),
    "bce": Loss(lambda s, t: F.binary_cross_entropy_with_logits(s, t.to(s.dtype)), lambda n, c: torch.rand(n, c)),
    "bce, pos_weight": Loss(
        lambda s, t: F.binary_cross_entropy_with_logits(s, t.to(s.dtype), pos_weight=_weights(s)),
        lambda n, c: (torch.rand(n, c) > 0.5).float(),
    ),
    "kl": Loss(
        lambda s, t: F.kl_div(s.log_softmax(-1), t.to(s.dtype), reduction="batchmean"),
        lambda n, c: torch.rand(n, c).softmax(-1),
    ),
    "poisson": Loss(lambda s, t: F.poisson_nll_loss(s, t.to(s.dtype)), lambda n, c: torch.rand(n, c) * 3),
    "soft margin": Loss(lambda s, t: F.soft_margin_loss(s, t.to(s.dtype)), lambda n, c: torch.randn(n, c).sign()),
    "masked mean": Loss(_masked, torch.randn),
    "sum over rows": Loss(lambda s, t: (s - t.to(s.dtype)).square().mean(-1).sum() / s.shape[0], torch.randn),
    "half": Loss(lambda s, t: (s - t.to(s.dtype)).abs().mean() * 0.5 + s.square().mean() * 0.01, torch.randn),
}


class Model(nn.Module):
    """A front, blocks, and a head that gives class scores for each row."""

    def __init__(self, front: nn.Module, blocks: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.front, self.blocks, self.head = front, nn.ModuleList(blocks), head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.front(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@dataclass(frozen=True)
class Program:
    """
    A random program.

    Args:
        whole: names of its blocks that compute across rows.
        coarse: relative error due to explicit dtypes of the program.
    """

    name: str
    make: Callable[[], TrainingStep]
    whole: tuple[str, ...] = ()
    coarse: float = 0.0


def random_layers(number: int) -> Program:
    """Return the program of `number`."""
    g = random.Random(number)
    form = g.choice(("vectors", "tokens", "images"))
    width, length, classes = g.choice(SIZES), g.choice(SIZES), g.choice((4, 8))
    shape: tuple[int, ...] = {"vectors": (width,), "tokens": (length, width), "images": (width, 4, 4)}[form]
    table = {"vectors": ANY, "tokens": ANY | TOKENS, "images": IMAGES}[form]
    kinds = [g.choice(sorted(table)) for _ in range(g.randint(2, 4))]
    loss = g.choice(sorted(LOSSES))
    optimizer = g.choice((partial(torch.optim.SGD, lr=0.05, momentum=0.9), partial(torch.optim.SGD, lr=0.1)))

    def build() -> nn.Module:
        generator = random.Random(number + 1)
        torch.manual_seed(number)
        blocks = [table[kind].make(generator, shape) for kind in kinds]
        if form == "vectors":
            return Model(nn.Linear(6, width), blocks, nn.Linear(width, classes))
        if form == "tokens":
            pool = Lambda(lambda self, x: self.out(x.mean(1)), out=nn.Linear(width, classes))
            return Model(nn.Embedding(11, width), blocks, pool)
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
        return Model(nn.Conv2d(3, width, 3, padding=1), blocks, head)

    def make() -> TrainingStep:
        torch.manual_seed(number)
        item = {
            "vectors": lambda: torch.randn(ROWS, 6),
            "tokens": lambda: torch.randint(11, (ROWS, length)),
            "images": lambda: torch.randn(ROWS, 3, 4, 4),
        }[form]()
        return TrainingStep(build, LOSSES[loss].of, optimizer, (item, LOSSES[loss].targets(ROWS, classes)))

    whole = tuple(kind for kind in kinds if table[kind].whole)
    return Program(f"layers {number}: {form}, {', '.join(kinds)}; {loss}", make, whole,
                   max(table[kind].coarse for kind in kinds))  # fmt: skip
