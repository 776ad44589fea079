"""
Random graphs of functions on the rows of a batch, each generated from its number alone.

A graph begins with the items of a batch and grows node by node: a unary function, a combination of two values by
broadcasting, a product with a parameter, a view, or a reduction of a dim other than the rows. The first dim of each
value is the rows. The model computes the loss of several values: a mean, a sum, or a mean over selected rows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from _random_layers import Program
from torch import nn
from torch.nn import functional as F

from shardwright.api.training_step import TrainingStep

ROWS = 8
Shape = tuple[int, ...]
Run = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Node:
    """A function of earlier values and of an optional parameter, with the shape of its result."""

    run: Run
    inputs: tuple[int, ...]
    shape: Shape
    parameter: Shape | None = None


UNARY: tuple[Run, ...] = (
    torch.tanh,
    torch.sin,
    F.gelu,
    F.softplus,
    torch.square,
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
BINARY: tuple[Run, ...] = (
    torch.add,
    torch.mul,
    torch.sub,
    torch.minimum,
    lambda a, b: a / (1 + b.abs()),
    lambda a, b: torch.where(a > b, a, 0.5 * b),
    lambda a, b: torch.hypot(a, b + 1),
    lambda a, b: torch.addcdiv(a, b, a.square() + 1, value=0.3),
    lambda a, b: torch.atan2(a, b.abs() + 0.5),
    lambda a, b: a.lerp(b, 0.25),
)
REDUCED: tuple[Callable[[torch.Tensor, int], torch.Tensor], ...] = (
    lambda x, d: x.mean(d),
    lambda x, d: x.sum(d) / 4,
    lambda x, d: x.amax(d),
    lambda x, d: x.logsumexp(d),
    lambda x, d: x.var(d, correction=0),
    lambda x, d: torch.linalg.vector_norm(x + 0.1, dim=d),
    lambda x, d: x.prod(d).tanh(),
    lambda x, d: x.min(d).values,
    lambda x, d: x.median(d).values,
)
KEPT: tuple[Callable[[torch.Tensor, int], torch.Tensor], ...] = (
    lambda x, d: x.softmax(d),
    lambda x, d: x.cumsum(d) / x.shape[d],
    lambda x, d: x.flip(d),
    lambda x, d: x.roll(1, d),
    lambda x, d: x - x.mean(d, keepdim=True),
    lambda x, d: x.sort(d, descending=True).values,
    lambda x, d: x.log_softmax(d),
    lambda x, d: torch.cat([x.narrow(d, 0, 1), x.narrow(d, 0, x.shape[d] - 1)], d),
    lambda x, d: x.cumprod(d).clamp(-2, 2),
    lambda x, d: x.diff(dim=d, prepend=x.narrow(d, 0, 1)),
    lambda x, d: x.index_select(d, torch.arange(x.shape[d]).flip(0)),
)


def _unary(g: random.Random, shapes: Sequence[Shape]) -> Node:
    at = g.randrange(len(shapes))
    return Node(g.choice(UNARY), (at,), shapes[at])


def _binary(g: random.Random, shapes: Sequence[Shape]) -> Node | None:
    pairs = [(a, b) for a, one in enumerate(shapes) for b, two in enumerate(shapes) if one == two]
    a, b = g.choice(pairs)
    return Node(g.choice(BINARY), (a, b), shapes[a])


def _outer(g: random.Random, shapes: Sequence[Shape]) -> Node | None:
    """Return an outer operation of two values with one vector per row, which broadcast against each other."""
    flat = [at for at, shape in enumerate(shapes) if len(shape) == 2]
    a, b = g.choice(flat), g.choice(flat)
    run = g.choice(
        (lambda x, y: x.unsqueeze(2) * y.unsqueeze(1), lambda x, y: (x[:, :, None] - y[:, None]).tanh(),
         lambda x, y: torch.einsum("bi,bj->bij", x, y), lambda x, y: torch.bmm(x[:, :, None], y[:, None, :]))
    )  # fmt: skip
    return Node(run, (a, b), (ROWS, shapes[a][1], shapes[b][1]))


def _product(g: random.Random, shapes: Sequence[Shape]) -> Node:
    at, width = g.randrange(len(shapes)), g.choice((4, 6, 8))
    shape = shapes[at]
    run = g.choice(PRODUCTS)
    return Node(run, (at,), (*shape[:-1], width), (shape[-1], width))


def _scaled(g: random.Random, shapes: Sequence[Shape]) -> Node:
    """Return a product or sum with a parameter that broadcasts: of the last dim, of all dims but rows, or a scalar."""
    at = g.randrange(len(shapes))
    parameter = g.choice((shapes[at][-1:], shapes[at][1:], ()))
    return Node(g.choice((torch.mul, torch.add)), (at,), shapes[at], parameter)


def _view(g: random.Random, shapes: Sequence[Shape]) -> Node | None:
    at = g.randrange(len(shapes))
    rows, *rest = shapes[at]
    count = math.prod(rest)
    options: list[tuple[Run, Shape]] = [(lambda x: x.reshape(rows, -1), (rows, count))]
    if len(rest) == 2:
        options.append((lambda x: x.transpose(1, 2), (rows, rest[1], rest[0])))
        options.append((lambda x: x.permute(2, 0, 1).reshape(rest[1], -1).t().reshape(rows, *rest), (rows, *rest)))
        options.append((lambda x: x.flatten(0, 1).unflatten(0, (rows, rest[0])), (rows, *rest)))
        options.append((lambda x: x.mT.reshape(-1, rest[0]).view(rows, rest[1], rest[0]).mT, (rows, *rest)))
        options.append((lambda x: x.swapaxes(0, 1).reshape(rest[0], -1).view(rest[0], rows, -1).mT.permute(2, 0, 1),
                        (rows, *rest)))  # fmt: skip
    for size in (2, 3, 4):
        if rest[-1] % size == 0 and rest[-1] > size:
            split = (rows, *rest[:-1], size, rest[-1] // size)
            if len(split) <= 4:
                options.append((lambda x, s=split: x.view(s), split))
                options.append((lambda x, s=size: x.unflatten(-1, (-1, s)).mT.flatten(-2), shapes[at]))
            options.append((lambda x, s=size: x.reshape(-1, s).flip(1).reshape(x.shape), shapes[at]))
        if count % size == 0:
            options.append((lambda x, s=size: x.reshape(rows, s, -1), (rows, size, count // size)))
    run, shape = g.choice(options)
    return Node(lambda x: run(x.contiguous()), (at,), shape)


def _reduced(g: random.Random, shapes: Sequence[Shape]) -> Node | None:
    deep = [at for at, shape in enumerate(shapes) if len(shape) > 2]
    if not deep:
        return None
    at = g.choice(deep)
    dim, run = g.randrange(1, len(shapes[at])), g.choice(REDUCED)
    shape = shapes[at]
    return Node(lambda x: run(x, dim), (at,), (*shape[:dim], *shape[dim + 1 :]))


def _kept(g: random.Random, shapes: Sequence[Shape]) -> Node:
    at = g.randrange(len(shapes))
    dim, run = g.randrange(1, len(shapes[at])), g.choice(KEPT)
    return Node(lambda x: run(x, dim), (at,), shapes[at])


def _joined(g: random.Random, shapes: Sequence[Shape]) -> Node | None:
    flat = [at for at, shape in enumerate(shapes) if len(shape) == 2]
    a, b = g.choice(flat), g.choice(flat)
    width = shapes[a][1] + shapes[b][1]
    if width > 24:
        return None
    return Node(lambda x, y: torch.cat([x, y], 1), (a, b), (ROWS, width))


MAKERS = (_unary, _unary, _binary, _outer, _product, _product, _scaled, _view, _view, _reduced, _kept, _joined)

PRODUCTS: tuple[Run, ...] = (
    lambda x, w: x @ w,
    lambda x, w: torch.einsum("...i,ij->...j", x, w),
    lambda x, w: F.linear(x, w.t()),
    lambda x, w: x.matmul(w * 0.5) + w.sum(0),
)

Ending = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
LOSSES: dict[str, Ending] = {
    "mean of squares": lambda x, y, w: (x.mean(-1) - y).square().mean(),
    "sum": lambda x, y, w: (x.mean(-1) - y).abs().sum(),
    "weighted mean": lambda x, y, w: ((x.mean(-1) - y).square() * w).sum() / w.sum(),
    "sum over count": lambda x, y, w: ((x.sum(-1) - y).tanh() * (w > 0.5)).sum() / (w > 0.5).sum().clamp(min=1),
    "two terms": lambda x, y, w: F.mse_loss(x.mean(-1), y) + 0.01 * x.square().sum(-1).mean(),
    "l1 by rows": lambda x, y, w: F.l1_loss(x.mean(-1), y, reduction="none").mul(w).mean(),
    "root": lambda x, y, w: (x.mean(-1) - y).square().mean().add(1e-3).sqrt(),
    "log-likelihood": lambda x, y, w: -F.logsigmoid(x.mean(-1) * y.sign()).mean(),
}
NOT_A_SUM = ("root",)
"""Losses that are no sum over parts of a batch."""


class Layer(nn.Module):
    """A node with its parameter."""

    def __init__(self, node: Node, generator: torch.Generator) -> None:
        super().__init__()
        self.node = node
        if node.parameter is not None:
            self.weight = nn.Parameter(torch.randn(node.parameter, generator=generator) * 0.5)

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        return self.node.run(*values, *self.parameters())


class Graph(nn.Module):
    """A graph with its parameters and its loss."""

    def __init__(self, nodes: Sequence[Node], outputs: Sequence[int], ending: Ending, number: int) -> None:
        super().__init__()
        self.ending = ending
        generator = torch.Generator().manual_seed(number)
        self.nodes, self.outputs = nodes, outputs
        self.first = nn.Linear(6, 8)
        self.layers = nn.ModuleList(Layer(node, generator) for node in nodes)

    def forward(self, x: torch.Tensor, z: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        values = [self.first(x), z]
        for node, layer in zip(self.nodes, self.layers, strict=True):
            values.append(layer(*(values[i] for i in node.inputs)))
        scores = torch.cat([values[at].reshape(x.shape[0], -1)[:, :4].tanh() for at in self.outputs], 1)
        return self.ending(scores, y, w)


def random_functions(number: int) -> Program:
    """Return the program of `number`."""
    g = random.Random(10_000_019 + number)
    shapes: list[Shape] = [(ROWS, 8), (ROWS, 4)]
    nodes: list[Node] = []
    while len(nodes) < g.randint(5, 12):
        node = g.choice(MAKERS)(g, shapes)
        if node is not None and math.prod(node.shape) <= ROWS * 192:
            nodes.append(node)
            shapes.append(node.shape)
    outputs = tuple(range(max(2, len(shapes) - 3), len(shapes)))
    loss = g.choice(sorted(LOSSES))

    def make() -> TrainingStep:
        torch.manual_seed(number)
        x, z, y, w = torch.randn(ROWS, 6), torch.randn(ROWS, 4), torch.randn(ROWS), torch.rand(ROWS)
        build = partial(Graph, nodes, outputs, LOSSES[loss], number)
        return TrainingStep(build, None, partial(torch.optim.SGD, lr=0.05), (x, z, y, w))

    return Program(f"functions {number}: {len(nodes)} nodes; {loss}", make, (loss,) if loss in NOT_A_SUM else ())
