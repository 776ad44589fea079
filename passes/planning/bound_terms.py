"""
The terms that bound a step from below, whatever its strategy; `bound.py` weighs them.

In the simulator the ops of a rank run one after the other, the collectives over one group of axes run one after the
other, and each waits for the values it depends on. Some ops X_1 .. X_m are *cuts* of the step: the ops before a cut
surely end before the ops after it begin (`_cuts`). X_0 is the begin of the step and X_m+1 its end. For a strategy x,
let C_ij(x) be the seconds of the ops that surely run between X_i and X_j, S_ia(x) the seconds, without latency, of the
collectives over the axes a on values that X_i or an op after X_i produces, and L_ij(x) the seconds, with latency, of
the ops and collectives along one path from X_i to X_j. Then

    time from X_i to X_j       >=  C_ij(x)                    Term(i, j, "compute")
    time from X_i to X_j       >=  L_ij(x)                    Term(i, j, "path")
    time from X_i to the end   >=  sum_a load_pa S_ia(x)      Term(i, m + 1, wire p)

A *wire* carries one collective at a time, or several that fill a part of it each; a collective over the axes a fills
the part `load_pa` of wire p. Each group of axes fills its own stream, and groups whose rings pass the same port of the
network share this port (`bound_wires.py`).

Take non-negative weights: for every segment (X_i to X_i+1), the weights of the terms that span the segment sum to at
most 1 (`normalised`). The weighted sum of the terms is then a lower bound of the step. It is a sum over ops and over
changes of sharding, which `BoundWeights` charges.

A communication that a program executes once must be charged once. Users of a value that require the same sharding share
one copy, a user that requires the home sharding needs no copy, and `overlap` shares gathers on the ways to several
shardings: a program executes at least a tree of collectives from the home to all required shardings. With k users
behind a working copy, each user is charged 1 / k of the way from the copy to its sharding. If the copy may have the
home sharding, the charges sum to the average of the ways from home, and the tree costs at least as much as each way. If
the copy may have any form (`_has_any_form`), each user is charged 1 / (k - 1): if some user requires the home sharding,
at most k - 1 users need a copy, as above; if all users require one sharding, the copy may have it; otherwise at most
k - 1 users require the same sharding, and the copy may be where the tree first forks. A change of sharding for an
update, a result or the loss is not charged if other users may share it.
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
    """A lower bound of the time between two cuts: the seconds of a wire, of compute or of a path."""

    begin: int
    end: int
    what: Wire | Literal["compute", "path"]

    @property
    def name(self) -> str:
        """Return a name such as `compute 0-3` or `node gpu 1-3`."""
        return f"{self.what if isinstance(self.what, str) else self.what.name} {self.begin}-{self.end}"


Mix: TypeAlias = Mapping[Term, float]
"""The weight of every term."""

_FREE = Price(0.0, Pricing())

_NO_AXES = Mesh(())

_LEAST = 1e-5
"""The lower limit of the weight of wires, so that the solver prefers, among equal strategies, one that sends less."""

_BETWEEN = 1
"""Number of cuts between the first and the last."""


def segment_sums(mix: Mix) -> dict[int, float]:
    """Return, for each segment, the sum of the weights of the terms that span it."""
    sums: defaultdict[int, float] = defaultdict(float)
    for term, weight in mix.items():
        for segment in range(term.begin, term.end):
            sums[segment] += max(weight, 0.0)
    return sums


def least_weight(term: Term) -> float:
    """Return the lower limit of the weight of a term; it is positive for wires from the begin of the step."""
    return _LEAST if term.begin == 0 and not isinstance(term.what, str) else 0.0


def normalised(mix: Mix) -> dict[Term, float]:
    """Raise each weight to its lower limit, then scale all of them so that the largest sum over a segment is 1."""
    raised = {term: max(weight, least_weight(term)) for term, weight in mix.items()}
    most = max(segment_sums(raised).values(), default=0.0) or 1.0
    return {term: weight / most for term, weight in raised.items()}


@dataclass(frozen=True)
class Outline:
    """
    The cuts of a step, the ops that surely run before and after each of them, and one path through the step.

    Args:
        cuts: the cuts in order; they are numbered from 1.
        before: for each op, the numbers of the cuts that are the op or surely run after it.
        after: for each op, the numbers of the cuts that surely run before it.
        path: for each op on the path, the path term that counts it.
        hops: for each op on the path, the index of the operand that comes from the path's previous op or an argument.
    """

    cuts: tuple[ComputeOp, ...]
    before: Mapping[ComputeOp, frozenset[int]]
    after: Mapping[ComputeOp, frozenset[int]]
    path: Mapping[ComputeOp, Term]
    hops: Mapping[ComputeOp, int]

    @property
    def end(self) -> int:
        """Return the number of the end of the step."""
        return len(self.cuts) + 1

    @cached_property
    def handed_on(self) -> dict[SSAValue, Term]:
        """Map each value along the path to the path term of the op that uses it."""
        return {op.operands[index]: self.path[op] for op, index in self.hops.items()}

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Return the pairs of cuts between which the seconds of ops are summed."""
        m = self.end
        pairs = [(0, m), *((0, i) for i in range(1, m)), *((i, m) for i in range(1, m)), (1, m - 1)]
        return list(dict.fromkeys((a, b) for a, b in pairs if a < b))

    def terms(self, wires: Sequence[Wire]) -> list[Term]:
        """Return all terms for the given wires."""
        terms = [Term(a, b, "compute") for a, b in self.spans]
        terms += dict.fromkeys(self.path.values())
        return [*terms, *(Term(i, self.end, wire) for i in range(self.end) for wire in wires)]

    @cached_property
    def _sums(self) -> dict[ComputeOp, tuple[Term, ...]]:
        sums: dict[ComputeOp, tuple[Term, ...]] = {}
        for op in self.before:
            begins, ends = {0, *self.after[op]}, {self.end, *self.before[op]}
            sums[op] = tuple(Term(a, b, "compute") for a, b in self.spans if a in begins and b in ends)
        return sums

    def terms_of_op(self, op: ComputeOp) -> tuple[Term, ...]:
        """Return the terms that count the seconds of an op."""
        term = self.path.get(op)
        return self._sums[op] if term is None else (*self._sums[op], term)

    def begins_of(self, value: SSAValue) -> tuple[int, ...]:
        """Return 0, and the numbers of the cuts that produce a value or surely run before its producer."""
        if not isinstance(value, OpResult) or not isinstance(value.op, ComputeOp):
            return (0,)
        producers = (i for i, cut in enumerate(self.cuts, 1) if cut is value.op)
        return tuple(sorted({0, *self.after[value.op], *producers}))

    def part_of(self, move: ShardingChange) -> Term | None:
        """Return the path term that counts a change of sharding, or None if the path does not contain the change."""
        if move.why == "copy":
            return self.handed_on.get(move.value)
        if move.why == "home" and isinstance(move.to, ComputeOp) and move.to is self._last:
            return self.path[move.to]
        if isinstance(move.to, ComputeOp) and move.why in ("user", "update"):
            return self.path[move.to] if self.hops.get(move.to) == move.operand else None
        return None

    @cached_property
    def _last(self) -> ComputeOp | None:
        """Return the last op of the path."""
        passed = {value.op for value in self.handed_on if isinstance(value, OpResult)}
        return next((op for op in self.path if op not in passed), None)


def uncut(view: StepView) -> Outline:
    """Return an outline without cuts, for a step whose ops run once for each part of the batch, in any order."""
    none = dict.fromkeys(view.ops, frozenset[int]())
    return Outline((), none, none, {}, {})


def outline_of(view: StepView, least: Mapping[ComputeOp, float]) -> Outline:
    """
    Return the cuts of a step and a path through it.

    Args:
        least: a lower bound of the seconds of each op; the bounds decide the cuts and the path.
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
    The order of ops that every program of a step keeps.

    An op runs after the ops it depends on. Moreover, `overlap` keeps the order of the step, except that updates come
    last, views anywhere, and producers of a collective's operand up to a few ops earlier (`overlapping/early.py`). A
    *leaf*, a gradient that only updates use, is no such operand: all ops before it in the step stay before it.
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
        """Return whether an op needs another, directly or indirectly."""
        return bool(self.reached[op] >> self.at[on] & 1)

    def ends_by(self, op: ComputeOp, cut: ComputeOp) -> bool:
        """Return whether an op surely runs before a cut."""
        if self.depends(cut, op):
            return True
        stays = not train.is_update(op) and not is_view(op)
        return stays and cut in self._leaves and self.at[op] < self.at[cut]

    def begins_after(self, op: ComputeOp, cut: ComputeOp) -> bool:
        """Return whether an op surely runs after a cut."""
        if self.depends(op, cut):
            return True
        if cut not in self._leaves or is_view(op):
            return False
        if train.is_update(op):
            return True
        distance = self.at[op] - self.at[cut]
        return op in self.contracted and distance > (0 if op in self._leaves else WINDOW)

    def _is_leaf(self, op: ComputeOp) -> bool:
        """Return whether only updates use an op's results. Ops that `early_scalars_first` may move are not leaves."""
        if train.is_update(op) or is_view(op) or op not in self.contracted:
            return False
        return is_for_updates(op, is_view)


def sources_of(op: ComputeOp) -> list[ComputeOp]:
    """Return the ops that produce the operands of an op."""
    owners = (value.op for value in op.operands if isinstance(value, OpResult))
    return [owner for owner in owners if isinstance(owner, ComputeOp)]


def _cuts(order: _Order, least: Mapping[ComputeOp, float]) -> tuple[ComputeOp | None, list[ComputeOp]]:
    """
    Return the forward cut and the gradient cuts.

    The forward cut is the op that all leaves depend on with the most work before it. The gradient cuts are the last
    leaf, and the first leaves that complete equal fractions of the work between these two.
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
    # An op that another candidate depends on has less work before it than that candidate.
    ends = [op for op in candidates if not needed >> order.at[op] & 1]

    def work(op: ComputeOp) -> float:
        return sum(least[needed_op] for needed_op in candidates if order.depends(op, needed_op))

    forward = max(ends, key=lambda op: (work(op), order.at[op]), default=None)
    began = order.at[forward] if forward is not None else 0
    so_far = list(accumulate((least[op] for op in order.view.ops[began:]), initial=0.0))
    done = {op: so_far[max(order.at[op] - began, 0)] for op in order.leaves}
    last = order.leaves[-1]
    goals = [done[last] * part / (_BETWEEN + 1) for part in range(1, _BETWEEN + 1)]
    chosen = [next(op for op in order.leaves if done[op] >= goal) for goal in goals]
    return forward, list(dict.fromkeys([*chosen, last]))


def _path(
    order: _Order, least: Mapping[ComputeOp, float], cuts: Sequence[ComputeOp], through: Sequence[ComputeOp]
) -> tuple[dict[ComputeOp, Term], dict[ComputeOp, int]]:
    """Return the path through some cuts with the largest sum of least seconds, and the operand index of each hop."""
    numbers = {cut: number for number, cut in enumerate(cuts, 1)}
    bounds = [0, *(numbers[cut] for cut in through), len(cuts) + 1]
    length: dict[ComputeOp, tuple[int, float]] = {}
    hops: dict[ComputeOp, int] = {}
    for op in order.view.ops:
        passed, before = 0, 0.0
        for index, value in enumerate(op.operands):
            source = value.op if isinstance(value, OpResult) else None
            longest = length.get(source) if isinstance(source, ComputeOp) else None
            if longest is None:
                # Prefer the argument with the most bytes if no producer takes longer.
                longest = (0, 1e-18 * value_bytes(value)) if isinstance(value, BlockArgument) else (0, -1.0)
            if longest > (passed, before) or (op not in hops and longest >= (passed, before)):
                (passed, before), hops[op] = longest, index
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
    The part of the cost of a change of sharding that a bound counts.

    Args:
        begins: numbers of the cuts after which the change may happen.
        part: path term that counts the change, or None.
        share: factor of its seconds in streams.
    """

    begins: tuple[int, ...]
    part: Term | None
    share: float


@dataclass(frozen=True)
class BoundWeights(Weights):
    """
    The cost of ops and changes of sharding under the weights of a mix.

    Args:
        wires: streams and ports whose terms are counted.
        started: axes over which starting some collective was measured to take time from the compute stream. Collectives
            over them count on wires or as compute, whichever has the lower weight.
    """

    mix: Mix = field(default_factory=dict[Term, float])
    outline: Outline = Outline((), {}, {}, {}, {})
    mesh: Mesh = _NO_AXES
    wires: tuple[Wire, ...] = ()
    started: frozenset[Axes] = frozenset()
    _any_form: dict[int, bool] = field(default_factory=dict[int, bool], init=False, repr=False, compare=False)
    _prices: dict[Charge, Price] = field(default_factory=dict[Charge, Price], init=False, repr=False, compare=False)

    def of_op(self, op: ComputeOp) -> float:
        """Return the factor of the seconds of an op."""
        return sum(self.mix.get(term, 0.0) for term in self.outline.terms_of_op(op))

    def price(self, move: ShardingChange) -> Price:
        """Return the price of a change of a value's sharding."""
        charge = self.charge(move)
        if charge not in self._prices:
            self._prices[charge] = self._price(charge)
        return self._prices[charge]

    def charge(self, move: ShardingChange) -> Charge:
        """Return the part of the cost of a change of sharding that counts; the head of this file explains it."""
        share = 1.0
        if move.why == "user" and move.users > 1:
            share /= move.users - self._has_any_form(move)
        if move.why == "loss" or (move.why in ("update", "home") and move.users > 1):
            share = 0.0
        return Charge(self.outline.begins_of(move.value), self.outline.part_of(move), share)

    def _has_any_form(self, move: ShardingChange) -> bool:
        """Return whether the working copy of a value may have every even sharding that its shape allows."""
        if (is_any := self._any_form.get(id(move.forms))) is None:
            partial = any(form.partial for form in move.forms)
            shape = shape_of(move.value)
            shardings = even_shardings(len(shape), self.mesh, partial=partial)
            is_any = {form for form in shardings if fits(form, shape, self.mesh)} <= set(move.forms)
            self._any_form[id(move.forms)] = is_any
        return is_any

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
        # Prices that differ only by a factor share one pricing.
        inner, factor = (charge.share, 1.0) if whole else (1.0, charge.share)
        weights = [
            (axes, inner * self._weight(self.loads_of_stream(axes, charge.begins))) for axes in streams(self.mesh)
        ]
        if not charge.share or not (whole or any(weight for _, weight in weights)):
            return _FREE
        by_axes = (((), 0.0), *weights)
        return Price(factor, Pricing(by_axes, 0.0, latency_free=True, whole=whole, tie=0.0), beside=True)

    def totals(self, problem: StrategyProblem, assignment: States, tables: Tables) -> dict[Term, float]:
        """Return the seconds of an assignment by term, unweighted."""
        totals: defaultdict[Term, float] = defaultdict(float)
        for decision, seconds, state in zip(problem.decisions, problem.seconds, assignment, strict=True):
            if seconds is not None and isinstance(decision.subject, ComputeOp):
                for term in self.outline.terms_of_op(decision.subject):
                    totals[term] += float(seconds[state])
        counted: dict[object, Mapping[Term, float]] = {}
        for edge, traffic in zip(problem.problem.edges, problem.traffic, strict=True):
            source, target = traffic.sources[int(assignment[edge.u])], traffic.targets[int(assignment[edge.v])]
            if source != target:
                charge = self.charge(traffic.move)
                key = (traffic.splits, element_bytes(traffic.move.value), source, target, charge)
                if key not in counted:
                    counted[key] = self._counted(traffic, source, target, charge, tables.costs[traffic.price.pricing])
                for term, seconds in counted[key].items():
                    totals[term] += seconds
        return dict(totals)

    def _counted(
        self, traffic: EdgeTraffic, source: Sharding, target: Sharding, charge: Charge, costs: ReshardCosts
    ) -> Mapping[Term, float]:
        """Return the seconds of one change of sharding by term, unweighted."""
        seconds: defaultdict[Term, float] = defaultdict(float)
        width = element_bytes(traffic.move.value)
        size = float(prod(traffic.splits.sizes) * width)
        for step in costs.path(traffic.splits, width, source, target):
            if axes := stream_of(step):
                for term, load in self.loads_of_stream(axes, charge.begins):
                    seconds[term] += load * charge.share * costs.prices.seconds(step, size)
                if charge.part is not None:
                    seconds[charge.part] += costs.prices.least_seconds(step, size)
        return seconds


def started_axes(cluster: Cluster) -> frozenset[Axes]:
    """Return the axes over which the start of some collective was measured to take time from the compute stream."""
    groups: set[Axes] = set()
    for axes in streams(cluster.mesh):
        link = cluster.link("-".join(axes))
        if link is not None and any(name.endswith(":start") for name, _, _ in link.points):
            groups.add(axes)
    return frozenset(groups)
