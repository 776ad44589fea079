"""
Random models of layers and functions, each generated from its number alone, with the norms, views, buffers and dtypes
of common models.

A model is a front of `_random_attention.py`, two to four random blocks of `BLOCKS`, and a loss of class scores. Sizes
come from a small set, so that unrelated dims are often equal. Blocks that compute across the rows of a batch are
marked, since a batch cannot be split in models that have one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from _random_attention import BLOCKS as ATTENTION
from _random_attention import WHOLE, Model, front
from torch import nn
from torch.nn import functional as F

from shardwright.api.training_step import TrainingStep

ROWS = 8
Function = Callable[..., torch.Tensor]


class Lambda(nn.Module):
    """A function of the module and a value, with the buffers, modules and parameters that it uses."""

    def __init__(
        self,
        function: Callable[[Any, torch.Tensor], torch.Tensor],
        buffers: dict[str, torch.Tensor] | None = None,
        **parts: nn.Module | nn.Parameter,
    ) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)
        for name, value in (buffers or {}).items():
            self.register_buffer(name, value, persistent=name != "table")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


@dataclass(frozen=True)
class Block:
    """
    A kind of block, made from a generator and a width, which maps [rows, time, width] to the same shape.

    `whole` says whether a row's result depends on other rows, and `coarse` is the error due to the block's dtypes.
    """

    make: Callable[[random.Random, int], nn.Module]
    whole: bool = False
    coarse: float = 0.0


def _linear(g: random.Random, width: int) -> nn.Module:
    act = g.choice((nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Softplus, nn.Mish, nn.ELU))
    hidden = g.choice((4, 8, 12, width))
    return nn.Sequential(nn.Linear(width, hidden, bias=g.random() < 0.7), act(), nn.Linear(hidden, width))


def _gated(g: random.Random, width: int) -> nn.Module:
    halves: Callable[[torch.Tensor], Any] = g.choice(
        (
            lambda y: y.chunk(2, -1),
            lambda y: y.split([width, width], dim=-1),
            lambda y: y.unflatten(-1, (2, width)).unbind(-2),
        )
    )

    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        a, b = halves(self.up(x))
        return x + F.silu(a) * b

    return g.choice(
        (Lambda(run, up=nn.Linear(width, 2 * width)), nn.Sequential(nn.Linear(width, 2 * width), nn.GLU(-1)))
    )


def _normed(g: random.Random, width: int) -> nn.Module:
    frozen = nn.LayerNorm(width).requires_grad_(False)
    norm = g.choice(
        (
            nn.LayerNorm(width, elementwise_affine=g.random() < 0.7),
            nn.RMSNorm(width),
            frozen,
            Lambda(lambda self, x: F.normalize(x, dim=-1) * self.scale, scale=nn.Parameter(torch.ones(()))),
            Lambda(lambda self, x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3)),
            Lambda(lambda self, x: x / (1 + torch.linalg.vector_norm(x, dim=-1, keepdim=True))),
            Lambda(lambda self, x: self.norm(x.mT).mT, norm=nn.GroupNorm(2, width)),
            Lambda(lambda self, x: self.norm(x.mT).mT, norm=nn.InstanceNorm1d(width, affine=True)),
        )
    )
    return nn.Sequential(norm, nn.Linear(width, width))


def _weight_normed(g: random.Random, width: int) -> nn.Module:
    wrap = g.choice((nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm))
    return wrap(nn.Linear(width, width))


def _buffered(g: random.Random, width: int) -> nn.Module:
    def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) / self.calls.clamp(max=2).to(x.dtype)

    def rotary(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.table.cos() + x.flip(-1) * self.table.sin()

    def scheduled(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.scale.mul_(0.5).add_(0.25)
        return self.linear(x) * self.scale

    run, buffer = g.choice(
        (
            (counted, {"calls": torch.zeros((), dtype=torch.long)}),
            (rotary, {"table": torch.linspace(0, 1, width)}),
            (scheduled, {"scale": torch.ones(())}),
        )
    )
    return Lambda(run, buffer, linear=nn.Linear(width, width))


def _averaged(g: random.Random, width: int) -> nn.Module:
    """Return a block with a buffer that is updated from the batch."""
    del g

    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.detach().flatten(0, -2).mean(0).to(self.mean.dtype), 0.1)
        return self.linear(x - self.mean)

    return Lambda(run, {"mean": torch.zeros(width)}, linear=nn.Linear(width, width))


def _cast(g: random.Random, width: int) -> nn.Module:
    dtype, elementwise = g.choice((torch.bfloat16, torch.float32, torch.float64)), g.random() < 0.5

    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.to(dtype).sigmoid() if elementwise else F.linear(x.to(dtype), self.linear.weight.to(dtype))
        return x + y.to(x.dtype) * self.scale

    return Lambda(run, linear=nn.Linear(width, width), scale=nn.Parameter(torch.tensor(0.5)))


def _frozen_batch_norm(g: random.Random, width: int) -> nn.Module:
    del g
    norm = nn.BatchNorm1d(width).eval()
    norm.train = lambda mode=True: norm  # type: ignore[method-assign]
    return Lambda(lambda self, x: self.norm(x.flatten(0, -2)).view(x.shape), norm=norm)


VIEWS: tuple[Function, ...] = (
    lambda x: x.unflatten(-1, (2, -1)).transpose(-1, -2).reshape(x.shape),
    lambda x: x.flatten(0, -2).view(-1, x.shape[-1]).view(x.shape),
    lambda x: x.reshape(x.shape[0], -1).view(x.shape[0], -1, 2).flip(-1).reshape(x.shape),
    lambda x: torch.cat([x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1),
    lambda x: x.unsqueeze(1).expand(-1, 3, *x.shape[1:]).mean(1),
    lambda x: x.roll(1, -1) + x.flip(-1),
    lambda x: torch.stack([x, -x], 1).amax(1),
    lambda x: x.repeat(1, 1, 2)[..., x.shape[-1] // 2 : x.shape[-1] // 2 + x.shape[-1]],
    lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0) * 2,
    lambda x: x.reshape(2, -1, *x.shape[1:]).flatten(0, 1),
    lambda x: x.swapaxes(0, 1).reshape(x.shape[1], x.shape[0], -1).swapaxes(0, 1).reshape(x.shape),
    lambda x: F.pad(x, (1, 1))[..., 1:-1].cumsum(-1),
    lambda x: torch.einsum("b...i,b...i->b...", x, x).unsqueeze(-1) * x,
    lambda x: x.narrow(-1, 0, x.shape[-1] // 2).repeat_interleave(2, -1),
    lambda x: x.unfold(-1, 2, 2).flatten(-2),
    lambda x: (x.unsqueeze(3) * x.unsqueeze(2)).mean(-1),
)
UNARY: tuple[Function, ...] = (
    lambda x: x.abs().sqrt(),
    lambda x: x.clamp(-1.5, 1.5),
    lambda x: F.hardtanh(x) + F.leaky_relu(x, 0.1),
    lambda x: torch.log1p(x.abs()),
    lambda x: x * torch.sigmoid(1.702 * x),
    lambda x: x - x.detach().floor(),
    lambda x: torch.reciprocal(1 + x * x),
    lambda x: x.neg().expm1().clamp(max=2.0),
    lambda x: torch.where(x.isfinite(), x, torch.zeros_like(x)) ** 3 / 8,
    lambda x: F.silu(x.float()).to(x.dtype) if x.dtype != torch.float64 else F.silu(x),
)
BINARY: tuple[Function, ...] = (
    lambda x, y: x / (1 + y.abs()),
    lambda x, y: torch.where(x > y, x, 0.5 * y),
    lambda x, y: torch.hypot(x, y + 1),
    lambda x, y: torch.addcdiv(x, y, x.square() + 1, value=0.3),
    lambda x, y: torch.atan2(x, y.abs() + 0.5),
    lambda x, y: torch.lerp(x, y, 0.3).abs().sqrt(),
    lambda x, y: torch.where(x > 0, y, -0.1 * x),
    lambda x, y: y.masked_fill(x < -0.5, 0.0),
    lambda x, y: torch.maximum(y, x).clamp(-3, 3),
    lambda x, y: y * (x.argmax(-1, keepdim=True) == 0),
    lambda x, y: y.gather(-1, x.argsort(-1)),
    lambda x, y: torch.addcmul(x, y, y.tanh(), value=0.5),
    lambda x, y: y * torch.ones_like(x).triu(),
)
ALONG: tuple[Callable[[torch.Tensor, int], torch.Tensor], ...] = (
    lambda x, d: x.softmax(d),
    lambda x, d: x.cumsum(d) / x.shape[d],
    lambda x, d: x.cumprod(d).clamp(-2, 2),
    lambda x, d: x.roll(1, d),
    lambda x, d: x.sort(d, descending=True).values,
    lambda x, d: x.log_softmax(d),
    lambda x, d: torch.cat([x.narrow(d, 0, 1), x.narrow(d, 0, x.shape[d] - 1)], d),
    lambda x, d: x.diff(dim=d, prepend=x.narrow(d, 0, 1)),
    lambda x, d: x.index_select(d, torch.arange(x.shape[d]).flip(0)),
    lambda x, d: x - x.mean(d, keepdim=True),
    lambda x, d: x * x.amax(d, keepdim=True),
    lambda x, d: x - x.logsumexp(d, keepdim=True),
    lambda x, d: x * x.var(d, correction=0, keepdim=True),
    lambda x, d: x / torch.linalg.vector_norm(x + 0.1, dim=d, keepdim=True),
    lambda x, d: x + x.prod(d, keepdim=True).tanh(),
    lambda x, d: x - x.min(d, keepdim=True).values,
    lambda x, d: x - x.median(d, keepdim=True).values,
)
"""Functions along a dim that is not the rows."""


def _functions(g: random.Random, width: int) -> nn.Module:
    """Return a chain of random functions that combine earlier values."""
    chosen = [(g.choice(VIEWS), g.choice(UNARY), g.choice(BINARY), g.choice(ALONG), g.choice((1, 2))) for _ in range(2)]

    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        for view, unary, binary, along, dim in chosen:
            x, y = y, along(binary(unary(x), view(y)), dim).tanh()
        return y

    return Lambda(run, linear=nn.Linear(width, width))


def _of_attention(kind: str) -> Block:
    make = ATTENTION[kind][1]
    return Block(lambda g, width: make(g, width, 2), whole=kind in WHOLE)


BLOCKS: dict[str, Block] = {
    "linear": Block(_linear),
    "gated": Block(_gated),
    "norm": Block(_normed),
    "weight norm": Block(_weight_normed),
    "buffer": Block(_buffered),
    "average": Block(_averaged, whole=True),
    "cast": Block(_cast, coarse=2e-2),
    "frozen batch norm": Block(_frozen_batch_norm),
    "functions": Block(_functions),
    "functions of functions": Block(lambda g, width: nn.Sequential(_functions(g, width), _functions(g, width))),
    **{kind: _of_attention(kind) for kind in ("unpacked", "mixed", "convolved", "batch-norm")},
}


def _labels(rows: int, classes: int) -> torch.Tensor:
    return torch.randint(classes, (rows,))


def _some_ignored(rows: int, classes: int) -> torch.Tensor:
    return torch.where(torch.rand(rows) < 0.3, -100, _labels(rows, classes))


def _shares(rows: int, classes: int) -> torch.Tensor:
    return torch.rand(rows, classes).softmax(-1)


def _weights(scores: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, scores.shape[-1], dtype=scores.dtype)


def _masked(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    selected = (targets > 0).to(scores.dtype)
    return ((scores - targets).pow(2) * selected).sum() / selected.sum().clamp(min=1)


LOSSES: dict[str, tuple[Function, Callable[[int, int], torch.Tensor]]] = {
    "cross-entropy": (F.cross_entropy, _labels),
    "ignored": (F.cross_entropy, _some_ignored),
    "smoothed": (partial(F.cross_entropy, label_smoothing=0.1), _some_ignored),
    "weighted": (lambda s, t: F.cross_entropy(s, t, weight=_weights(s), label_smoothing=0.2), _some_ignored),
    "smoothed sum": (partial(F.cross_entropy, label_smoothing=0.1, reduction="sum"), _labels),
    "soft targets": (F.cross_entropy, _shares),
    "mse": (F.mse_loss, torch.randn),
    "smooth l1": (partial(F.smooth_l1_loss, beta=0.5), torch.randn),
    "huber sum": (partial(F.huber_loss, reduction="sum"), torch.randn),
    "bce": (lambda s, t: F.binary_cross_entropy_with_logits(s, t, pos_weight=_weights(s)), _shares),
    "kl": (lambda s, t: F.kl_div(s.log_softmax(-1), t, reduction="batchmean"), _shares),
    "poisson": (F.poisson_nll_loss, _shares),
    "soft margin": (F.soft_margin_loss, lambda rows, classes: torch.randn(rows, classes).sign()),
    "masked mean": (_masked, torch.randn),
    "sum over rows": (lambda s, t: (s - t).square().mean(-1).sum() / s.shape[0], torch.randn),
    "half": (lambda s, t: (s - t).abs().mean() * 0.5 + s.square().mean() * 0.01, torch.randn),
    "log-likelihood": (lambda s, t: -F.logsigmoid(s * t.sign()).mean(), torch.randn),
    "root": (lambda s, t: F.mse_loss(s, t).add(1e-3).sqrt(), torch.randn),
}
"""Functions from scores [rows, classes] and targets to a loss, and makers of the targets."""

NOT_A_SUM = ("root",)
"""Losses that are no sum over parts of a batch."""


@dataclass(frozen=True)
class Program:
    """A random program: the names of its parts that compute across rows, and its error due to explicit dtypes."""

    name: str
    make: Callable[[], TrainingStep]
    whole: tuple[str, ...] = ()
    coarse: float = 0.0


def random_layers(number: int) -> Program:
    """Return the program of `number`."""
    g = random.Random(number)
    width, classes = g.choice((4, 8, 12)), g.choice((4, 8))
    kinds: Sequence[str] = [g.choice(sorted(BLOCKS)) for _ in range(g.randint(2, 4))]
    loss = g.choice(sorted(LOSSES))
    optimizer = g.choice((partial(torch.optim.SGD, lr=0.05, momentum=0.9), partial(torch.optim.SGD, lr=0.1)))
    form = random.Random(number + 1)

    def build() -> nn.Module:
        generator = random.Random(number + 2)
        torch.manual_seed(number)
        blocks = [BLOCKS[kind].make(generator, width) for kind in kinds]
        head = Lambda(lambda self, x: self.out(x.mean(1)), out=nn.Linear(width, classes))
        return Model(front(random.Random(number + 1), width, ROWS)[1], blocks, head)

    def make() -> TrainingStep:
        torch.manual_seed(number)
        of, targets = LOSSES[loss]

        def loss_of(scores: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
            return of(scores, given.to(scores.dtype) if given.is_floating_point() else given)

        item = front(random.Random(number + 1), width, ROWS)[2]()
        return TrainingStep(build, loss_of, optimizer, (item, targets(ROWS, classes)))

    whole = tuple(name for name in (*kinds, loss) if name in NOT_A_SUM or (name in BLOCKS and BLOCKS[name].whole))
    coarse = max(BLOCKS[kind].coarse for kind in kinds)
    return Program(f"{number}: {front(form, width, ROWS)[0]}, {', '.join(kinds)}; {loss}", make, whole, coarse)
