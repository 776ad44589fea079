"""
What bounds a step from below, whatever its strategy: the terms that `bound.py` weighs.

The simulator runs the ops of a rank one after the other, what goes over one group of axes one after the other, and
nothing before what it depends on. Some ops are *cuts* of the step, X_1 .. X_m: what comes before one surely ends before
what comes after it begins (`_cuts`). With C_ij(x) the seconds, under a strategy x, of the ops that surely run between
X_i and X_j (between the begin and the end of the step, for i = 0 and j = m + 1), S_ia(x) those of what goes over the
axes a of values that are made by X_i or after it, free of latency, and L_ij(x) those of ops and collectives along a
path from X_i to X_j, latency and all,

    time from X_i to X_j       >=  C_ij(x)                    Term(i, j, "compute")
    time from X_i to X_j       >=  L_ij(x)                    Term(i, j, "path")
    time from X_i to the end   >=  sum_a load_pa S_ia(x)      Term(i, m + 1, wire)

A *wire* carries one collective at a time, or several in part; `load_pa` is the part that a collective over `a` fills. A
group of axes fills its own stream; the groups whose rings pass a port of the network share it (`bound_wires.py`).

Take weights that are not negative, such that for every segment (X_i to X_i+1) the weights of the terms that span it sum
to at most 1 (`normalised`). The weighted sum of these terms is a lower bound of the step. It is a sum over ops and over
changes of sharding, which `BoundWeights` charges for.

What a program does once must be charged once. The users of a value with the same demand share what they get, one that
wants it as it is made takes that, and `overlap` shares gathers on the ways to several demands: what a program does is
at least a tree from home to all demands. With k users behind a working copy, each is charged the part 1 / k of its own
way from there. Where the copy might be as made, that comes to the average of the ways from home, and a tree is as long
as each. Where it may have any form (`_has_any_form`), the part is 1 / (k - 1): if some user takes the value as made,
the others are at most k - 1, as above; if all want the same, their form may be the copy's; else those with the same
demand are at most k - 1, and the copy may be where the tree forks first. What an update, a result or the loss may share
with other users is not charged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Literal, NamedTuple, TypeAlias

from xdsl.ir import BlockArgument, OpResult, SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp, element_bytes, shape_of, value_bytes
from ...ir.cluster import Cluster
from ...ir.mesh import Mesh
from ...ir.sharding import Sharding
from ..analysis.compute import is_contraction, is_for_updates, is_view
from ..analysis.resharding import ReshardCosts, even_shardings, fits
from ..analysis.step_prices import Axes, Pricing, stream_of
from ..overlapping.early import WINDOW
from ..search.objective import Price, ShardingChange, Weights
from ..search.problem import States
from ..search.shared_tables import Tables
from ..search.strategy_problem import EdgeTraffic, StrategyProblem
from ..step.step_view import StepView
from .bound_wires import Wire, streams


class Term(NamedTuple):
    """The time from one cut to another that a wire, compute or a path fills."""

    begin: int
    end: int
    what: Wire | Literal["compute", "path"]

    @property
    def name(self) -> str:
        """`compute 0-3`, `node gpu 1-3`."""
        return f"{self.what if isinstance(self.what, str) else self.what.name} {self.begin}-{self.end}"


Mix: TypeAlias = Mapping[Term, float]
"""The weight of every term."""

_FREE = Price(0.0, Pricing())

_NO_AXES = Mesh(())

_LEAST = 1e-5
"""Of strategies that are as good otherwise, that with the least to send is met."""

_BETWEEN = 1
"""How many cuts there are between the first and the last."""


def segment_sums(mix: Mix) -> dict[int, float]:
    """By segment, what the weights of the terms that span it sum to."""
    found: defaultdict[int, float] = defaultdict(float)
    for term, weight in mix.items():
        for segment in range(term.begin, term.end):
            found[segment] += max(weight, 0.0)
    return found


def least_weight(term: Term) -> float:
    """The weight that a term has at least: streams count from the begin on, or they would tell nothing."""
    return _LEAST if term.begin == 0 and not isinstance(term.what, str) else 0.0


def normalised(mix: Mix) -> dict[Term, float]:
    """Weights in the proportions of `mix`, as large as they may be, but none below its least."""
    raised = {term: max(weight, least_weight(term)) for term, weight in mix.items()}
    most = max(segment_sums(raised).values(), default=0.0) or 1.0
    return {term: weight / most for term, weight in raised.items()}


@dataclass(frozen=True)
class Outline:
    """
    What is surely before and after the cuts of a step, and a path through it.

    Args:
        cuts: in order.
        before, after: by op, the numbers (from 1) of the cuts that it surely ends by, and that it surely begins after.
        path: by op, the part of the path that it is on: the number of the cut where that begins.
        hops: by op of the path, the operand that it has from the op before, or that is an argument.
    """

    cuts: tuple[ComputeOp, ...]
    before: Mapping[ComputeOp, frozenset[int]]
    after: Mapping[ComputeOp, frozenset[int]]
    path: Mapping[ComputeOp, Term]
    hops: Mapping[ComputeOp, int]

    @property
    def end(self) -> int:
        """The number of the end of the step."""
        return len(self.cuts) + 1

    @cached_property
    def handed_on(self) -> dict[SSAValue, Term]:
        """The values along the path, with the part of who takes them."""
        return {op.operands[index]: self.path[op] for op, index in self.hops.items()}

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """From and to where ops are summed."""
        m = self.end
        found = [(0, m), *((0, i) for i in range(1, m)), *((i, m) for i in range(1, m)), (1, m - 1)]
        return list(dict.fromkeys((a, b) for a, b in found if a < b))

    def terms(self, wires: Sequence[Wire]) -> list[Term]:
        """All terms."""
        found = [Term(a, b, "compute") for a, b in self.spans]
        found += dict.fromkeys(self.path.values())
        return [*found, *(Term(i, self.end, wire) for i in range(self.end) for wire in wires)]

    @cached_property
    def _sums(self) -> dict[ComputeOp, tuple[Term, ...]]:
        found: dict[ComputeOp, tuple[Term, ...]] = {}
        for op in self.before:
            begins, ends = {0, *self.after[op]}, {self.end, *self.before[op]}
            found[op] = tuple(Term(a, b, "compute") for a, b in self.spans if a in begins and b in ends)
        return found

    def terms_of_op(self, op: ComputeOp) -> tuple[Term, ...]:
        """The terms in which an op counts."""
        on = self.path.get(op)
        return self._sums[op] if on is None else (*self._sums[op], on)

    def begins_of(self, value: SSAValue) -> tuple[int, ...]:
        """The cuts from which on a value may travel: it is made by them, or after them."""
        if not isinstance(value, OpResult) or not isinstance(value.op, ComputeOp):
            return (0,)
        made = (i for i, cut in enumerate(self.cuts, 1) if cut is value.op)
        return tuple(sorted({0, *self.after[value.op], *made}))

    def part_of(self, move: ShardingChange) -> Term | None:
        """The part of the path that a change of sharding is on."""
        if move.why == "copy":
            return self.handed_on.get(move.value)
        if move.why == "home" and isinstance(move.to, ComputeOp) and move.to is self._last:
            return self.path[move.to]
        if isinstance(move.to, ComputeOp) and move.why in ("user", "update"):
            return self.path[move.to] if self.hops.get(move.to) == move.operand else None
        return None

    @cached_property
    def _last(self) -> ComputeOp | None:
        """The op at the end of the path."""
        passed = {value.op for value in self.handed_on if isinstance(value, OpResult)}
        return next((op for op in self.path if op not in passed), None)


def uncut(view: StepView) -> Outline:
    """Return the outline of a step whose ops run once for each part of the batch, in any order: without cuts."""
    none = dict.fromkeys(view.ops, frozenset[int]())
    return Outline((), none, none, {}, {})


def outline_of(view: StepView, least: Mapping[ComputeOp, float]) -> Outline:
    """
    The cuts of a step, and a path through it.

    Args:
        least: by op, the least that it can take, by which cuts and path are chosen.
    """
    order = _Order(view)
    forward, gradients = _cuts(order, least)
    cuts = [*([forward] if forward is not None else []), *gradients]
    before: dict[ComputeOp, frozenset[int]] = {}
    after: dict[ComputeOp, frozenset[int]] = {}
    for op in view.ops:
        before[op] = frozenset(i for i, cut in enumerate(cuts, 1) if op is cut or order.ends_by(op, cut))
        after[op] = frozenset(i for i, cut in enumerate(cuts, 1) if order.begins_after(op, cut))
    through = [cut for cut in (forward, gradients[-1] if gradients else None) if cut is not None]
    path, hops = _path(order, least, cuts, through)
    return Outline(tuple(cuts), before, after, path, hops)


class _Order:
    """
    Which ops of a step run before which, in any program that is made of it.

    What depends on another comes after it. Besides, `overlap` keeps the order of ops, but that updates come last, views
    anywhere, and operands of collectives among few ops earlier (`schedule.early`). A *leaf*, a gradient of which only
    updates are made, is no such operand: all that comes before it in the step as it is given, stays before it.
    """

    def __init__(self, view: StepView) -> None:
        self.view = view
        self.at = {op: index for index, op in enumerate(view.ops)}
        self.reached: dict[ComputeOp, int] = {}
        self.contracted: set[ComputeOp] = set()
        for op in view.ops:
            sources = sources_of(op)
            self.reached[op] = 0
            for source in sources:
                self.reached[op] |= self.reached[source] | (1 << self.at[source])
            if is_contraction(op) or any(source in self.contracted for source in sources):
                self.contracted.add(op)
        self.leaves = [op for op in view.ops if self._is_leaf(op)]
        self._leaves = set(self.leaves)

    def depends(self, op: ComputeOp, on: ComputeOp) -> bool:
        """Whether an op needs another, directly or not."""
        return bool(self.reached[op] >> self.at[on] & 1)

    def ends_by(self, op: ComputeOp, cut: ComputeOp) -> bool:
        """Whether an op surely runs before a cut."""
        if self.depends(cut, op):
            return True
        stays = not train.is_update(op) and not is_view(op)
        return stays and cut in self._leaves and self.at[op] < self.at[cut]

    def begins_after(self, op: ComputeOp, cut: ComputeOp) -> bool:
        """Whether an op surely runs after a cut."""
        if self.depends(op, cut):
            return True
        if cut not in self._leaves or is_view(op):
            return False
        if train.is_update(op):
            return True
        distance = self.at[op] - self.at[cut]
        return op in self.contracted and distance > (0 if op in self._leaves else WINDOW)

    def _is_leaf(self, op: ComputeOp) -> bool:
        """Whether only updates are made of what an op gives; what may be moved ahead as a number's origin is none."""
        if train.is_update(op) or is_view(op) or op not in self.contracted:
            return False
        return is_for_updates(op, is_view)


def sources_of(op: ComputeOp) -> list[ComputeOp]:
    """The ops that make the operands of an op."""
    owners = (value.op for value in op.operands if isinstance(value, OpResult))
    return [owner for owner in owners if isinstance(owner, ComputeOp)]


def _cuts(order: _Order, least: Mapping[ComputeOp, float]) -> tuple[ComputeOp | None, list[ComputeOp]]:
    """
    The op that all gradients depend on with the most to do before it, and some leaves that depend on it.

    These are the last one, and those where parts of what there is to do in between are done.
    """
    if not order.leaves:
        return None, []
    common = -1
    for op in order.leaves:
        common &= order.reached[op]
    candidates = [op for op in order.view.ops if common >> order.at[op] & 1]
    needed = 0
    for op in candidates:
        needed |= order.reached[op]
    # What another candidate needs has less before it than that one.
    ends = [op for op in candidates if not needed >> order.at[op] & 1]

    def work(op: ComputeOp) -> float:
        return sum(least[each] for each in candidates if order.depends(op, each))

    forward = max(ends, key=lambda op: (work(op), order.at[op]), default=None)
    began = order.at[forward] if forward is not None else 0
    so_far = list(accumulate((least[each] for each in order.view.ops[began:]), initial=0.0))
    done = {op: so_far[max(order.at[op] - began, 0)] for op in order.leaves}
    last = order.leaves[-1]
    goals = [done[last] * part / (_BETWEEN + 1) for part in range(1, _BETWEEN + 1)]
    chosen = [next(op for op in order.leaves if done[op] >= goal) for goal in goals]
    return forward, list(dict.fromkeys([*chosen, last]))


def _path(
    order: _Order, least: Mapping[ComputeOp, float], cuts: Sequence[ComputeOp], through: Sequence[ComputeOp]
) -> tuple[dict[ComputeOp, Term], dict[ComputeOp, int]]:
    """The longest path by the least seconds of its ops, through some cuts; and the operands along it."""
    numbers = {cut: number for number, cut in enumerate(cuts, 1)}
    bounds = [0, *(numbers[cut] for cut in through), len(cuts) + 1]
    length: dict[ComputeOp, tuple[int, float]] = {}
    hops: dict[ComputeOp, int] = {}
    for op in order.view.ops:
        passed, before = 0, 0.0
        for index, value in enumerate(op.operands):
            source = value.op if isinstance(value, OpResult) else None
            known = length.get(source) if isinstance(source, ComputeOp) else None
            if known is None:
                # Of arguments that of the most bytes, where nothing else takes longer.
                known = (0, 1e-18 * value_bytes(value)) if isinstance(value, BlockArgument) else (0, -1.0)
            if known > (passed, before) or (op not in hops and known >= (passed, before)):
                (passed, before), hops[op] = known, index
        is_next = passed < len(through) and op is through[passed]
        length[op] = (passed + is_next, before + least[op])
    path: dict[ComputeOp, Term] = {}
    op: ComputeOp | None = max(length, key=length.__getitem__, default=None)
    while op is not None:
        passed = length[op][0] - (op in through)
        path[op] = Term(bounds[passed], bounds[passed + 1], "path")
        source = op.operands[hops[op]] if op in hops else None
        op = source.op if isinstance(source, OpResult) and isinstance(source.op, ComputeOp) else None
    return path, {op: hops[op] for op in path if op in hops}


@dataclass(frozen=True)
class Charge:
    """
    What of a change of sharding counts.

    Args:
        begins: the cuts from which on it may happen.
        part: of the path that it is on.
        share: by which its seconds in streams are multiplied.
    """

    begins: tuple[int, ...]
    part: Term | None
    share: float


@dataclass(frozen=True)
class BoundWeights(Weights):
    """
    What the terms of a mix come to.

    Args:
        wires: the streams and ports whose terms are counted.
        started: axes over which some collective was measured to take some of its time from the compute stream, where it
            is started. For it, what weighs least of the two counts.
    """

    mix: Mix = field(default_factory=dict[Term, float])
    outline: Outline = Outline((), {}, {}, {}, {})
    mesh: Mesh = _NO_AXES
    wires: tuple[Wire, ...] = ()
    started: frozenset[Axes] = frozenset()
    _any_form: dict[int, bool] = field(default_factory=dict[int, bool], init=False, repr=False, compare=False)
    _prices: dict[Charge, Price] = field(default_factory=dict[Charge, Price], init=False, repr=False, compare=False)

    def of_op(self, op: ComputeOp) -> float:
        """By what the seconds of an op are multiplied."""
        return sum(self.mix.get(term, 0.0) for term in self.outline.terms_of_op(op))

    def price(self, move: ShardingChange) -> Price:
        """The price of a change of a value's sharding."""
        charge = self.charge(move)
        if charge not in self._prices:
            self._prices[charge] = self._price(charge)
        return self._prices[charge]

    def charge(self, move: ShardingChange) -> Charge:
        """What of a change of a value's sharding counts: see the head of this file."""
        share = 1.0
        if move.why == "user" and move.users > 1:
            share /= move.users - self._has_any_form(move)
        if move.why == "loss" or (move.why in ("update", "home") and move.users > 1):
            share = 0.0
        return Charge(self.outline.begins_of(move.value), self.outline.part_of(move), share)

    def _has_any_form(self, move: ShardingChange) -> bool:
        """Whether the working copy of a value may have any form that lies on a way between others."""
        if (known := self._any_form.get(id(move.forms))) is None:
            partial = any(form.partial for form in move.forms)
            shape = shape_of(move.value)
            every = even_shardings(len(shape), self.mesh, partial=partial)
            known = {form for form in every if fits(form, shape, self.mesh)} <= set(move.forms)
            self._any_form[id(move.forms)] = known
        return known

    def loads_of_stream(self, axes: Axes, begins: Sequence[int]) -> list[tuple[Term, float]]:
        """Return the terms that count the traffic over `axes`, each with the part of that traffic it counts."""
        end = self.outline.end
        own = [(Term(i, end, wire), load) for wire in self.wires if (load := wire.load(axes)) for i in begins]
        if axes not in self.started:
            return own
        return min(own, [(Term(i, end, "compute"), 1.0) for i in begins], key=self._weight)

    def _weight(self, loads: Iterable[tuple[Term, float]]) -> float:
        return sum(load * self.mix.get(term, 0.0) for term, load in loads)

    def _price(self, charge: Charge) -> Price:
        whole = self.mix.get(charge.part, 0.0) if charge.part is not None else 0.0
        # Tables that differ by a factor alone have one pricing.
        inner, factor = (charge.share, 1.0) if whole else (1.0, charge.share)
        weights = [
            (axes, inner * self._weight(self.loads_of_stream(axes, charge.begins))) for axes in streams(self.mesh)
        ]
        if not charge.share or not (whole or any(weight for _, weight in weights)):
            return _FREE
        by_axes = (((), 0.0), *weights)
        return Price(factor, Pricing(by_axes, 0.0, latency_free=True, whole=whole, tie=0.0), beside=True)

    def totals(self, problem: StrategyProblem, assignment: States, tables: Tables) -> dict[Term, float]:
        """What an assignment comes to, by term."""
        found: defaultdict[Term, float] = defaultdict(float)
        for decision, seconds, state in zip(problem.decisions, problem.seconds, assignment, strict=True):
            if seconds is not None and isinstance(decision.subject, ComputeOp):
                for term in self.outline.terms_of_op(decision.subject):
                    found[term] += float(seconds[state])
        known: dict[object, Mapping[Term, float]] = {}
        for edge, traffic in zip(problem.problem.edges, problem.traffic, strict=True):
            source, target = traffic.sources[int(assignment[edge.u])], traffic.targets[int(assignment[edge.v])]
            if source != target:
                charge = self.charge(traffic.move)
                key = (traffic.splits, element_bytes(traffic.move.value), source, target, charge)
                if key not in known:
                    known[key] = self._counted(traffic, source, target, charge, tables.costs[traffic.price.pricing])
                for term, seconds in known[key].items():
                    found[term] += seconds
        return dict(found)

    def _counted(
        self, traffic: EdgeTraffic, source: Sharding, target: Sharding, charge: Charge, costs: ReshardCosts
    ) -> Mapping[Term, float]:
        """What one change of sharding comes to, by term."""
        found: defaultdict[Term, float] = defaultdict(float)
        width = element_bytes(traffic.move.value)
        size = float(prod(traffic.splits.sizes) * width)
        for step in costs.path(traffic.splits, width, source, target):
            if axes := stream_of(step):
                for term, load in self.loads_of_stream(axes, charge.begins):
                    found[term] += load * charge.share * costs.prices.seconds(step, size)
                if charge.part is not None:
                    found[charge.part] += costs.prices.least_seconds(step, size)
        return found


def started_axes(cluster: Cluster) -> frozenset[Axes]:
    """The axes over which the start of some collective was measured to take time from the compute stream."""
    found: set[Axes] = set()
    for axes in streams(cluster.mesh):
        link = cluster.link("-".join(axes))
        if link is not None and any(name.endswith(":start") for name, _, _ in link.points):
            found.add(axes)
    return frozenset(found)
