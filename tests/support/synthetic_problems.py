"""
Synthetic problems with the structure of a joint training graph, for tests and benchmarks.

A problem is a stack of equal residual blocks on a mesh of two axes. It has forward ops, mirrored backward ops that read
forward values and upstream gradients, and for each weight a home, its uses and its update. Values with several uses
have a working placement. On each axis an op splits one dim of its contraction, is replicated, or passes a partial sum
through. A resharding costs the data that its collectives move, plus a latency. The instances need no framework; they
have the size, sparsity and repetition of real instances, but not their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod

import numpy as np

from shardwright.passes.search.problem import Costs, Edge, Problem

SIZES = {"b": 32.0, "s": 1024.0, "h": 1600.0, "a": 1600.0, "f": 6400.0}
"""Size of each dim: batch, sequence, hidden, attention heads, feed-forward."""

AXES = ((8, 1.0), (4, 8.0))
"""Devices of each mesh axis, and relative seconds for moving one unit of data."""

LATENCY = 2e-5
SECONDS_PER_ELEMENT = 1e-11
SECONDS_PER_PRODUCT = 1e-14

Placement = tuple[str, ...]
"""Per mesh axis: a dim's letter if the value is split, "R" if replicated, "P" if partial."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A contraction in einsum notation. `blocked` dims cannot be split, and `linear` operands may be partial."""

    notation: str
    blocked: str = ""
    linear: tuple[int, ...] = ()

    @property
    def operands(self) -> tuple[str, ...]:
        """Return the dims of each operand."""
        return tuple(self.notation.split("->")[0].split(","))

    @property
    def result(self) -> str:
        """Return the dims of the result."""
        return self.notation.split("->")[1]


@cache
def signatures(rule: Rule) -> tuple[tuple[Placement, ...], ...]:
    """Return the alternatives of an op: for each, the placements of its operands and of its result."""
    letters = dict.fromkeys("".join(rule.operands) + rule.result)
    choices: list[tuple[str, ...]] = [("R",) * (len(rule.operands) + 1)]
    for letter in letters:
        if letter not in rule.blocked:
            operands = (letter if letter in dims else "R" for dims in rule.operands)
            choices.append((*operands, letter if letter in rule.result else "P"))
    if rule.linear:
        together = len(rule.linear) > 1
        partial = ("P" if together or index in rule.linear else "R" for index in range(len(rule.operands)))
        choices.append((*partial, "P"))
    return tuple(tuple(zip(*pair, strict=True)) for pair in product(choices, repeat=len(AXES)))


@cache
def compute_costs(rule: Rule) -> Costs:
    """Return the seconds of each signature: products and elements divided by the devices that share them."""
    dims = set("".join(rule.operands) + rule.result)
    products = _elements("".join(dims)) * SECONDS_PER_PRODUCT
    elements = sum(_elements(operand) for operand in (*rule.operands, rule.result)) * SECONDS_PER_ELEMENT
    shares = [
        np.prod([size if any(p[axis] != "R" for p in places) else 1 for axis, (size, _) in enumerate(AXES)])
        for places in signatures(rule)
    ]
    return (products + elements) / np.array(shares)


def _elements(dims: str) -> float:
    return prod(SIZES[letter] for letter in dims)


def move_cost(dims: str, source: str, target: str, axis: int) -> float:
    """Return the seconds it takes to change the placement of a value on one mesh axis; inf if impossible."""
    if source == target or (source == "R" and target != "P"):
        return 0.0
    if target == "P" or target not in f"{dims}R" or source not in f"{dims}RP":
        return np.inf
    devices, slowness = AXES[axis]
    share = 2.0 if (source, target) == ("P", "R") else 1.0 if "P" in source or target == "R" else 1 / devices
    return LATENCY + slowness * share * (devices - 1) / devices * _elements(dims) * SECONDS_PER_ELEMENT


@cache
def move_table(dims: str, sources: tuple[Placement, ...], targets: tuple[Placement, ...]) -> Costs:
    """Return the costs of resharding a value from each of `sources` (rows) to each of `targets` (columns)."""

    def move(source: Placement, target: Placement) -> float:
        return sum(move_cost(dims, source[axis], target[axis], axis) for axis in range(len(AXES)))

    return np.array([[move(source, target) for target in targets] for source in sources])


@dataclass(frozen=True, slots=True)
class Value:
    """The result of a node: its dims, and its placement in each state of the node."""

    node: int
    dims: str
    placements: tuple[Placement, ...]


class Builder:
    """A problem under construction. Ops are called on values as in a model."""

    def __init__(self) -> None:
        self.unary: list[Costs] = []
        self.values: list[Value] = []
        self.uses: list[list[tuple[int, tuple[Placement, ...]]]] = []

    def value(self, dims: str, *, partial: bool = False, cost: Costs | None = None) -> Value:
        """Add a node whose states are the placements of a value with `dims`."""
        places = tuple(product(("R", *dims, "P") if partial else ("R", *dims), repeat=len(AXES)))
        return self._add(dims, places, _no_cost(len(places)) if cost is None else cost)

    def op(self, rule: Rule, *operands: Value) -> Value:
        """Add an op and its demands on `operands`."""
        states = signatures(rule)
        result = self._add(rule.result, tuple(places[-1] for places in states), compute_costs(rule))
        for position, operand in enumerate(operands):
            self.uses[operand.node].append((result.node, tuple(places[position] for places in states)))
        return result

    def _add(self, dims: str, places: tuple[Placement, ...], cost: Costs) -> Value:
        value = Value(len(self.unary), dims, places)
        self.unary.append(cost)
        self.values.append(value)
        self.uses.append([])
        return value

    def problem(self) -> Problem:
        """Return the problem, with a working placement for each value with several uses."""
        edges: list[Edge] = []
        for value in list(self.values):
            source, uses = value, self.uses[value.node]
            if len(uses) > 1:
                source = self.value(value.dims, partial=True)
                to_working = move_table(value.dims, value.placements, source.placements)
                edges.append(Edge(value.node, source.node, to_working))
            for node, demand in uses:
                edges.append(Edge(source.node, node, move_table(value.dims, source.placements, demand)))
        return Problem(tuple(self.unary), tuple(edges))


@cache
def _no_cost(states: int) -> Costs:
    return np.zeros(states)


@cache
def _storage(dims: str) -> Costs:
    """Return the storage cost of a weight with `dims` in each placement: a price per element on a device."""
    places = product(("R", *dims), repeat=len(AXES))
    shares = [prod(size for (size, _), p in zip(AXES, place, strict=True) if p != "R") for place in places]
    return _elements(dims) * 4 * SECONDS_PER_ELEMENT / np.array(shares, dtype=float)


NORM = Rule("bsh->bsh", blocked="h")
NORM_BACKWARD = Rule("bsh,bsh->bsh", blocked="h")
ADD = Rule("bsh,bsh->bsh", linear=(0, 1))
ATTENTION = Rule("bsa,bsa,bsa->bsa", blocked="s")
ATTENTION_BACKWARD = Rule("bsa,bsa,bsa,bsa->bsa", blocked="s")
HEADS = Rule("bsa->bsa", linear=(0,))
GELU = Rule("bsf->bsf")
GELU_BACKWARD = Rule("bsf,bsf->bsf", linear=(1,))


class Linear:
    """A weight with its home, its forward use, its two backward uses and its update."""

    def __init__(self, build: Builder, inner: str, outer: str) -> None:
        self.build, self.inner, self.outer = build, inner, outer
        self.weight = build.value(inner + outer, cost=_storage(inner + outer))
        self.bias = build.value(outer, cost=_storage(outer))

    def forward(self, x: Value) -> Value:
        """Return x W + b."""
        i, o = self.inner, self.outer
        self.x = x
        product_ = self.build.op(Rule(f"bs{i},{i}{o}->bs{o}", linear=(0,)), x, self.weight)
        return self.build.op(Rule(f"bs{o},{o}->bs{o}"), product_, self.bias)

    def backward(self, gradient: Value) -> Value:
        """Return the gradient of x, and add the updates of weight and bias."""
        i, o = self.inner, self.outer
        weight_gradient = self.build.op(Rule(f"bs{i},bs{o}->{i}{o}"), self.x, gradient)
        self.build.op(Rule(f"{i}{o},{i}{o}->{i}{o}"), self.weight, weight_gradient)
        bias_gradient = self.build.op(Rule(f"bs{o}->{o}", linear=(0,)), gradient)
        self.build.op(Rule(f"{o},{o}->{o}"), self.bias, bias_gradient)
        return self.build.op(Rule(f"bs{o},{i}{o}->bs{i}", linear=(0,)), gradient, self.weight)


class Block:
    """A transformer block: attention and feed-forward, each with norm and residual."""

    def __init__(self, build: Builder) -> None:
        self.build = build
        self.query, self.key, self.value = (Linear(build, "h", "a") for _ in range(3))
        self.out = Linear(build, "a", "h")
        self.up, self.down = Linear(build, "h", "f"), Linear(build, "f", "h")

    def forward(self, x: Value) -> Value:
        """Return the output of the block, and keep what backward needs."""
        op = self.build.op
        normed = op(NORM, x)
        heads = [op(HEADS, linear.forward(normed)) for linear in (self.query, self.key, self.value)]
        mixed = op(ATTENTION, *heads)
        middle = op(ADD, x, self.out.forward(op(HEADS, mixed)))
        hidden = self.up.forward(op(NORM, middle))
        self.saved = x, heads, middle, hidden
        return op(ADD, middle, self.down.forward(op(GELU, hidden)))

    def backward(self, gradient: Value) -> Value:
        """Return the gradient of the block's input."""
        op = self.build.op
        x, heads, middle, hidden = self.saved
        through = self.up.backward(op(GELU_BACKWARD, hidden, self.down.backward(gradient)))
        gradient = op(ADD, gradient, op(NORM_BACKWARD, middle, through))
        mixed = op(HEADS, self.out.backward(gradient))
        parts = [
            linear.backward(op(HEADS, op(ATTENTION_BACKWARD, *heads, mixed)))
            for linear in (self.query, self.key, self.value)
        ]
        return op(ADD, gradient, op(NORM_BACKWARD, x, op(ADD, op(ADD, parts[0], parts[1]), parts[2])))


def layered_problem(layers: int) -> Problem:
    """Return the training graph of `layers` equal blocks."""
    build = Builder()
    blocks = [Block(build) for _ in range(layers)]
    x = build.value("bsh")
    for block in blocks:
        x = block.forward(x)
    gradient = build.op(NORM_BACKWARD, x, x)
    for block in reversed(blocks):
        gradient = block.backward(gradient)
    return build.problem()


def perturbed(problem: Problem, seed: int, *, shared: bool = True) -> Problem:
    """
    Return `problem` with every cost scaled by a random factor in [0.5, 1.5).

    Equal layers share cost arrays. `shared` keeps them shared; otherwise every array is scaled anew, so layers differ.
    """
    random = np.random.default_rng(seed)
    scaled_costs: dict[int, Costs] = {}

    def scaled(costs: Costs) -> Costs:
        fresh = scaled_costs.get(id(costs)) if shared else None
        if fresh is None:
            fresh = scaled_costs[id(costs)] = costs * random.uniform(0.5, 1.5, costs.shape)
        return fresh

    return Problem(
        tuple(map(scaled, problem.unary)),
        tuple(Edge(edge.u, edge.v, scaled(edge.table)) for edge in problem.edges),
    )
