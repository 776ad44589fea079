"""
What bounds a step from below, whatever its strategy: the terms that `bound.py` weighs.

The simulator runs the ops of a rank one after the other, what goes over one group of axes one after the other, and
nothing before what it depends on. So with C(x) the seconds of ops under a strategy x, S_a(x) those of what goes over
the axes a, free of latency, and L(x) those of ops and collectives along a path, latency and all,

    step(x) >= C(all ops)                           ("step", "compute")
    step(x) >= S_a(all values)                      ("step", a)
    step(x) >= F(x) + R(x), F the time up to an op that all gradients depend on (the end of forward), R what follows
      F(x) >= C(what that op depends on)            ("first", "compute")
      F(x) >= L(a path up to it)                    ("first", "path")
      R(x) >= C(what depends on it)                 ("rest", "compute")
      R(x) >= S_a(values made of its result)        ("rest", a)
      R(x) >= L(a path from it)                     ("rest", "path")

Any weights w that are not negative with  sum w_step + s <= 1,  sum w_first <= s,  sum w_rest <= s  (`Mix`) make of them
a bound that is a sum over ops and over changes of sharding, which `BoundWeights` charges for.

What a program does once must be charged once. The users of a value with the same demand share what they get, and one
that wants it as it is made, takes that. With k users behind a working copy, each is charged 1 / (k - 1) of its own way
from there: where none takes the value as it is made, and not all want the same, those with the same demand are at most
k - 1; where all do, their common form may be the working copy; and where one takes it as made, the ways of the others
from home itself cost, on average, at most the longest of them, and the program goes that far. What an update, a result
or the loss may share with other users is not charged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Literal, TypeAlias

from xdsl.ir import OpResult, SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp, element_bytes
from ...ir.cluster import Cluster
from ...ir.mesh import Mesh
from ..analysis.step_prices import Axes, Pricing, stream_of
from ..search.objective import Move, Price, Weights
from ..search.problem import States
from ..search.shared_tables import Tables
from ..search.step_view import StepView
from ..search.strategy import StrategyProblem

Part = Literal["step", "first", "rest"]

Term: TypeAlias = tuple[Part, Axes | Literal["compute", "path"]]

Mix: TypeAlias = Mapping[Term, float]
"""The weight of every term."""

_FREE = Price(0.0, Pricing())


def term_name(term: Term) -> str:
    """`compute`, `node gpu`, `forward path`, `backward node`."""
    part, what = term
    stream = what if isinstance(what, str) else " ".join(what)
    return {"step": "", "first": "forward ", "rest": "backward "}[part] + stream


def streams(mesh: Mesh) -> list[Axes]:
    """The groups of axes that collectives may go over."""
    names = [axis.name for axis in mesh.spatial if axis.size > 1]
    return [axes for count in range(1, len(names) + 1) for axes in combinations(names, count)]


def terms_of(mesh: Mesh) -> list[Term]:
    """All terms of steps on a mesh."""
    found: list[Term] = [("step", "compute"), *(("step", axes) for axes in streams(mesh))]
    found += [("first", "compute"), ("first", "path"), ("rest", "compute"), ("rest", "path")]
    return [*found, *(("rest", axes) for axes in streams(mesh))]


def normalised(mix: Mix) -> Mix:
    """Weights in the proportions of `mix`, as large as they may be."""
    sums: defaultdict[Part, float] = defaultdict(float)
    for (part, _), weight in mix.items():
        sums[part] += max(weight, 0.0)
    total = sums["step"] + max(sums["first"], sums["rest"])
    return {term: max(weight, 0.0) / total for term, weight in mix.items()}


@dataclass(frozen=True)
class Outline:
    """
    The parts of a step, and a path through it.

    Args:
        parts: of each op, "first" or "rest"; others may run at any time.
        after: the values that come after the first part.
        path: by op, its part, along one path.
        hops: by op of the path, the operand that it has from the op before.
    """

    parts: Mapping[ComputeOp, Part]
    after: frozenset[SSAValue]
    path: Mapping[ComputeOp, Part]
    hops: Mapping[ComputeOp, int]

    @cached_property
    def handed_on(self) -> dict[SSAValue, Part]:
        """The values along the path, with the part of who takes them."""
        return {op.operands[index]: self.path[op] for op, index in self.hops.items()}

    def part_of(self, move: Move) -> Part | None:
        """The part of the path that a change of sharding is on."""
        if move.why == "copy":
            return self.handed_on.get(move.value)
        if isinstance(move.to, ComputeOp) and move.why == "user" and self.hops.get(move.to) == move.operand:
            return self.path[move.to]
        return None


def outline_of(view: StepView, least: Mapping[ComputeOp, float]) -> Outline:
    """
    The parts of a step: up to the last op that all gradients depend on, and from there.

    Args:
        least: by op, the least that it can take, by which the end of the first part, and the path, are chosen.
    """
    bits = {op: 1 << index for index, op in enumerate(view.ops)}
    before: dict[ComputeOp, int] = {}
    for op in view.ops:
        before[op] = 0
        for source in _sources(op):
            before[op] |= before[source] | bits[source]
    end = _end_of_first(view, before, bits, least)
    parts: dict[ComputeOp, Part] = {}
    after: set[SSAValue] = set()
    for op in view.ops:
        if end is None or before[op] & bits[end]:
            parts[op] = "rest"
        elif op is end or before[end] & bits[op]:
            parts[op] = "first"
        if parts.get(op) == "rest" or op is end:
            after.update(op.results)
    if end is None:
        after.update(given.argument for given in view.inputs)
    return Outline(parts, frozenset(after), *_longest_path(view, least, parts, end))


def _sources(op: ComputeOp) -> list[ComputeOp]:
    owners = (value.op for value in op.operands if isinstance(value, OpResult))
    return [owner for owner in owners if isinstance(owner, ComputeOp)]


def _end_of_first(
    view: StepView, before: Mapping[ComputeOp, int], bits: Mapping[ComputeOp, int], least: Mapping[ComputeOp, float]
) -> ComputeOp | None:
    """The op with the most to do before it among those that all gradients depend on; None where there is none."""
    common: int | None = None
    for op in view.ops:
        if isinstance(op, train.SgdOp | train.AdamWOp):
            for source in _sources(op):
                if not isinstance(source, train.TrainOp):
                    reached = before[source] | bits[source]
                    common = reached if common is None else common & reached
    candidates = [op for op in view.ops if common is not None and common & bits[op]]

    def work(op: ComputeOp) -> float:
        reached = before[op] | bits[op]
        return sum(least[each] for each in candidates if reached & bits[each])

    return max(candidates, key=lambda op: (work(op), bits[op]), default=None)


def _longest_path(
    view: StepView, least: Mapping[ComputeOp, float], parts: Mapping[ComputeOp, Part], end: ComputeOp | None
) -> tuple[dict[ComputeOp, Part], dict[ComputeOp, int]]:
    """The longest path by the least seconds of its ops, through `end`; and the operands along it."""
    length: dict[ComputeOp, float] = {}
    taken: dict[ComputeOp, int] = {}
    for op in view.ops:
        length[op] = least[op]
        known = [(i, v.op) for i, v in enumerate(op.operands) if isinstance(v, OpResult) and v.op in length]
        for index, source in known:
            through = isinstance(source, ComputeOp) and (parts.get(op) != "rest" or _may_precede(source, parts, end))
            if through and length[source] + least[op] > length[op] + (1e-15 if op in taken else -1e-15):
                length[op], taken[op] = length[source] + least[op], index
    ends = [op for op in length if end is None or parts.get(op) == "rest" or op is end]
    path: dict[ComputeOp, Part] = {}
    hops: dict[ComputeOp, int] = {}
    op: ComputeOp | None = max(ends, key=length.__getitem__, default=None)
    while op is not None:
        path[op] = parts.get(op, "first")
        if op not in taken:
            break
        hops[op] = taken[op]
        source = op.operands[taken[op]]
        op = source.op if isinstance(source, OpResult) and isinstance(source.op, ComputeOp) else None
    return path, hops


def _may_precede(source: ComputeOp, parts: Mapping[ComputeOp, Part], end: ComputeOp | None) -> bool:
    """Whether a path through `end` may go from `source` to an op after it."""
    return end is None or source is end or parts.get(source) == "rest"


@dataclass(frozen=True)
class BoundWeights(Weights):
    """
    What the terms of a mix come to.

    Args:
        started: axes over which some collective was measured to take some of its time from the compute stream, where it
            is started. For it, what weighs least of the two counts.
    """

    mix: Mix = field(default_factory=dict[Term, float])
    outline: Outline = Outline({}, frozenset(), {}, {})
    streams: tuple[Axes, ...] = ()
    started: frozenset[Axes] = frozenset()
    _known: dict[object, Price] = field(default_factory=dict[object, Price], init=False, repr=False, compare=False)

    def of_op(self, op: ComputeOp) -> float:
        """By what the seconds of an op are multiplied."""
        return sum(self.mix.get(term, 0.0) for term in self.terms_of_op(op))

    def terms_of_op(self, op: ComputeOp) -> list[Term]:
        """The terms in which an op counts."""
        found: list[Term] = [("step", "compute")]
        if (part := self.outline.parts.get(op)) is not None:
            found.append((part, "compute"))
        if (part := self.outline.path.get(op)) is not None:
            found.append((part, "path"))
        return found

    def terms_of_stream(self, axes: Axes, *, after: bool) -> list[Term]:
        """The terms in which counts what goes over `axes`."""
        own: list[Term] = [("step", axes), ("rest", axes)]
        computing: list[Term] = [("step", "compute"), ("rest", "compute")]
        ways = [own, computing] if axes in self.started else [own]
        return min(([*way[: 1 + after]] for way in ways), key=self._weight)

    def _weight(self, terms: Sequence[Term]) -> float:
        return sum(self.mix.get(term, 0.0) for term in terms)

    def charged(self, move: Move) -> float:
        """What part of a change of sharding counts in streams."""
        if move.why == "loss" or (move.why in ("update", "home") and move.users > 1):
            return 0.0
        return 1.0 / (move.users - 1) if move.why == "user" and move.users > 2 else 1.0

    def price(self, move: Move) -> Price:
        """The price of a change of a value's sharding."""
        after, part, share = move.value in self.outline.after, self.outline.part_of(move), self.charged(move)
        key = (after, part, share)
        if key not in self._known:
            self._known[key] = self._price(after, part, share)
        return self._known[key]

    def _price(self, after: bool, part: Part | None, share: float) -> Price:
        whole = self.mix.get((part, "path"), 0.0) if part is not None else 0.0
        # Tables that differ by a factor alone have one pricing.
        inner, factor = (share, 1.0) if whole else (1.0, share)
        weights = [(axes, inner * self._weight(self.terms_of_stream(axes, after=after))) for axes in self.streams]
        if not share or not (whole or any(weight for _, weight in weights)):
            return _FREE
        by_axes = (((), 0.0), *weights)
        return Price(factor, Pricing(by_axes, 0.0, latency_free=True, whole=whole, tie=0.0), beside=True)

    def totals(self, problem: StrategyProblem, assignment: States, tables: Tables) -> dict[Term, float]:
        """What an assignment comes to, by term."""
        found: defaultdict[Term, float] = defaultdict(float)
        for decision, seconds, state in zip(problem.decisions, problem.seconds, assignment, strict=True):
            if seconds is not None and isinstance(decision.subject, ComputeOp):
                for term in self.terms_of_op(decision.subject):
                    found[term] += float(seconds[state])
        known: dict[object, dict[Term, float]] = {}
        for edge, traffic in zip(problem.problem.edges, problem.traffic, strict=True):
            source, target = traffic.sources[assignment[edge.u]], traffic.targets[assignment[edge.v]]
            if source != target:
                costs, move = tables.costs[traffic.price.pricing], traffic.move
                after, part, share = move.value in self.outline.after, self.outline.part_of(move), self.charged(move)
                key = (traffic.splits, element_bytes(move.value), source, target, after, part, share)
                if key not in known:
                    counts = defaultdict[Term, float](float)
                    bytes = float(_product(traffic.splits.sizes)) * element_bytes(move.value)
                    for step in costs.path(traffic.splits, element_bytes(move.value), source, target):
                        if not (axes := stream_of(step)):
                            continue
                        for term in self.terms_of_stream(axes, after=after):
                            counts[term] += share * costs.prices.seconds(step, bytes)
                        if part is not None:
                            counts[part, "path"] += costs.prices.least_seconds(step, bytes)
                    known[key] = counts
                for term, seconds in known[key].items():
                    found[term] += seconds
        return dict(found)


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def started_axes(cluster: Cluster) -> frozenset[Axes]:
    """The axes over which the start of some collective was measured to take time from the compute stream."""
    found: set[Axes] = set()
    for axes in streams(cluster.mesh):
        link = cluster.link("-".join(axes))
        if link is not None and any(name.endswith(":start") for name, _, _ in link.points):
            found.add(axes)
    return frozenset(found)
