"""
A proven lower bound of the simulated step: no plan of a family has a shorter one.

    B(w)      =  min over strategies x of  sum_terms w_term * seconds_term(x)        `_Bounding.at`
    bound     =  max over the weights w tried of B(w)                                `_Bounding.run`
    of layouts:  the least bound of each                                             `plan_bound`

The terms, and why each weighted sum of them is a bound, are in `bound_terms.py`. Each B(w) is a discrete problem like
that of the search, solved exactly, or bounded from below where `Limits` end it. B is concave, and every strategy met
gives a linear function above it: the next weights are the best for all of those met so far, near the best so far
(`_next_mix`, a cutting-plane method in a box that shrinks where it did not help).

Covered are all programs that `insert-resharding`, `select-collectives`, `overlap` and `join-updates`, with any options,
make of any signatures, homes and working copies, the batch being whole and shares even. `parts_bound` covers plans that
cut the batch. For plans whose devices have shares by their speed, the total work is a bound: `compute_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import numpy as np

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp
from ...dialects.train import AssignOp, may_join
from ...ir.cluster import Cluster, Device
from ...ir.mesh import Mesh
from ...ir.op_cost import KernelPart, op_seconds
from ...ir.signatures import Signature, signatures
from ...ir.submesh import on_mesh
from ..analysis.compute import ONCE, has_tables, op_work, seconds_by_signature
from ..analysis.fusion import least_parts
from ..analysis.linear_program import LinearProgram
from ..pipelines import AXIS
from ..search.constraints import Constraints, constraints_of
from ..search.eliminate import LimitReached, Limits, solve
from ..search.objective import BatchLoop
from ..search.problem import Costs, Edge, Problem
from ..search.shared_tables import Tables
from ..search.strategy import build_problem
from ..search.strategy_problem import EdgeTraffic, StrategyProblem
from ..split_backward import SPLIT
from ..stages.stage_costs import whole_signature
from ..step.batch_parts import Batch, find_parts
from ..step.step_view import StepView, step_functions
from .bound_parts import Runs, crossing_seconds, queued_seconds
from .bound_terms import (
    BoundWeights,
    Mix,
    Term,
    least_weight,
    normalised,
    outline_of,
    segment_sums,
    started_axes,
    uncut,
)
from .bound_wires import wires_of
from .candidate_compiler import CandidateCompiler
from .candidates import Layout

LIMITS = Limits(entries=2_000_000, cheap_work=5_000_000, work=100_000_000, branches=4)
"""What solving one problem may take."""

ROUNDS = 10
"""How many weights are tried."""

_ROUNDING = 1e-9
"""By what part a bound is lowered, since the solver takes costs as equal that differ by less."""

_CLOSE = 1e-3
"""How near to the optimum of a problem its solution need be, and how near to the best bound weights need come."""

_FIRST_REACH = 0.2
"""How far each weight may be from the best so far, at first."""

_MAIN_REACH = 0.5
"""The reach while only the terms of the whole step are weighed."""


@dataclass(frozen=True)
class Bound:
    """
    A lower bound of the simulated step.

    Args:
        weights: of the terms that it is made of, by name (`compute`, `node gpu`, `forward path`).
        by: their seconds, unweighted, under the strategy that has the least weighted sum.
        solved: how many problems were.
    """

    seconds: float
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    by: Mapping[str, float] = field(default_factory=dict[str, float])
    solved: int = 0


def plan_bound(
    bench: CandidateCompiler,
    meshes: Iterable[Mesh],
    *,
    rounds: int = ROUNDS,
    target: float = math.inf,
    fused: bool = True,
) -> Bound:
    """
    The bound of all whole-batch plans with even shares on some meshes: that of the mesh with the least.

    Args:
        meshes: the one with the least bound early, if that is known.
        target: seconds from which on no better bound is of interest.
        fused: whether plans that keep batch-norms as single ops are covered.
    """
    least: Bound | None = None
    start: Mix | None = None
    solved = 0
    kinds = (False, True) if fused and bench.has_batch_norm else (False,)
    for layout in (Layout(mesh, fused=kind) for mesh in meshes for kind in kinds):
        enough = target if least is None else min(target, least.seconds)
        seconds, parts = 0.0, list[Bound]()
        for view, cluster in bench.laid_out(layout):
            bounding = _Bounding(view, cluster, constraints_of(view), LIMITS, bench.tables_of(cluster))
            parts.append(bounding.run(start, rounds, enough))
            start = start or bounding.best
            seconds += parts[-1].seconds
        solved += sum(part.solved for part in parts)
        if parts and (least is None or seconds < least.seconds):
            least = parts[0] if len(parts) == 1 else Bound(seconds)
    found = replace(least, solved=solved) if least is not None else Bound(0.0)
    # What bounds all plans may be the better bound of these, by a rounding of weights.
    return replace(found, seconds=max(found.seconds, compute_bound(bench)))


def parts_bound(bench: CandidateCompiler, layout: Layout, *, rounds: int = ROUNDS, target: float = math.inf) -> float:
    """
    The bound of all plans on a layout that cuts the batch, in its stages if it has any, with even shares.

    It is the best of three bounds: the ops of a stage between the paths before and after them (`bound_parts.py`), the
    ops and collectives of the stage that computes most, and the total work of the step.

    The second is B(w) with an op counted in all its runs, at their real sizes, and a change of sharding once, with the
    bytes of the whole value: parts hold different rows, so that together they send these bytes, and a sum over parts,
    or a value that all parts use, is sent at least once.
    """
    stages = bench.keeping(layout.keep).laid_out(layout)
    clusters = [cluster for _, cluster in stages]
    known = compute_bound(bench)
    if len({view.func for view, _ in stages}) > 1 or has_tables(bench.cluster.kinds_used):
        return known
    whole = stages[0][0].whole
    batch = Batch(bench.rows, AXIS, layout.parts, layout.mode == "duplex")
    loop = BatchLoop(layout.parts, find_parts(list(whole.func.body.block.ops), whole.inputs, batch))
    parts = [_Bounding(v, c, constraints_of(v), LIMITS, bench.tables_of(c), loop) for v, c in stages]
    runs = {op: each for part in parts for op, each in part.runs().items()}
    crossing = crossing_seconds(whole.func, loop, on_mesh(bench.cluster, layout.mesh), clusters)
    queued = queued_seconds(whole.func, runs, crossing)
    known = max(known, min(part.stepped(queued) for part in parts))
    if known >= target:
        return known
    most = max(parts, key=lambda part: sum(each.total for each in part.runs().values()))
    return max(known, most.run(None, rounds, target).seconds)


def compute_bound(bench: CandidateCompiler) -> float:
    """
    The bound of all plans whatever, by what there is to compute: every op is done by all devices together, each with
    the part that suits them, as efficiently as any size of it is, without launches, and nothing is sent.

    With shares s of an op o on devices r, that sum to 1, and t_or the seconds of all of o on r, for any weights w_r of
    the devices that sum to 1

        step  >=  sum_r w_r sum_o s_or t_or  >=  sum_o min_r w_r t_or

    This covers plans that cut the batch (accumulation, two parts in turns, stages), and shares by speed. It is 0 where
    a device has measured times of single ops, which may be as they like.
    """
    kinds = bench.cluster.kinds_used
    if has_tables(kinds):
        return 0.0
    devices = [bench.cluster.device(rank) for rank in range(bench.cluster.mesh.device_count)]
    counts = [sum(device is kind for device in devices) for kind in kinds]
    around = bench.cluster.interference
    found: list[float] = []
    for module in (bench.module, bench.fused) if bench.has_batch_norm else (bench.module,):
        alone: list[list[float]] = []
        for func in step_functions(module):
            parts = least_parts(func)
            ops = StepView(func, bench.own_mesh).ops
            alone += [[_without_launch(op, kind, parts.get(op)) for kind in kinds] for op in ops]
        totals = [sum(row[k] for row in alone) or 1.0 for k in range(len(kinds))]
        speed = sum(count / total for count, total in zip(counts, totals, strict=True))
        weights = [1.0 / total / speed for total in totals]
        found.append(sum(min(w * t for w, t in zip(weights, row, strict=True)) for row in alone))
    return min(1.0, around.compute) * min(found) + min(kind.overhead for kind in kinds)


def _without_launch(op: ComputeOp, device: Device, part: KernelPart | None) -> float:
    """The least seconds of all of an op on a device, in whatever parts of the batch."""
    if isinstance(op, AssignOp):
        return 0.0
    return op_seconds(device, op_work(op, whole_signature(op), Mesh(()), keyed=False, part=part), joins=True)


class _Bounding:
    """The bound of one step on one mesh; one use."""

    def __init__(
        self,
        view: StepView,
        cluster: Cluster,
        constraints: Constraints,
        limits: Limits,
        tables: Tables | None,
        loop: BatchLoop | None = None,
    ) -> None:
        self.view, self.limits, self.loop = view, limits, loop
        self.cluster = _alike(cluster, view)
        self.constraints = replace(constraints, copies={}, regathered=set())
        known = tables if tables is not None and self.cluster is cluster else Tables(self.cluster)
        self.tables = replace(known, costs={}, tables={})
        self.outline = outline_of(view, _least_seconds(view, self.cluster)) if loop is None else uncut(view)
        self.wires = wires_of(self.cluster)
        self.terms = self.outline.terms(self.wires)
        self.started = started_axes(cluster)
        every = self._weights(dict.fromkeys(self.terms, 1.0))
        self.problem = build_problem(view, self.cluster, self.constraints, every, tables=self.tables, loop=loop)
        if view.stage is not None:
            self._count_halves()
        self.unary: dict[tuple[int, float], Costs] = {}
        self.best: Mix = {}
        self.met: list[Mapping[Term, float]] = []
        self.is_mixed, self.overhead = len(cluster.kinds_used) > 1, min(kind.overhead for kind in cluster.kinds_used)
        around = self.cluster.interference
        # Where computing is quicker while something is sent, all of it might be.
        self.slowest = min(1.0, around.compute, around.communication)

    def run(self, start: Mix | None, rounds: int, enough: float) -> Bound:
        """Try weights of the terms of the whole step, then of all terms, until no better ones are near."""
        ahead, best = start or self.ops, Bound(0.0)
        terms, reach = (self.terms, _FIRST_REACH) if start else (self.main, _MAIN_REACH)
        for number in range(1, rounds + 1):
            mix = normalised({term: ahead.get(term, 0.0) for term in self.terms})
            if (found := self.at(mix)) is None:
                return replace(best, solved=number)
            if found.seconds > best.seconds:
                best, self.best = found, mix
            elif terms is self.terms:
                reach /= 2.0
            if best.seconds >= enough:
                return replace(best, solved=number)
            ahead, hoped = _next_mix(self.met, terms, self.best, reach)
            if self.stepped(hoped) <= (1.0 + _CLOSE) * best.seconds or _same(ahead, self.best):
                if terms is self.terms:
                    return replace(best, solved=number)
                terms, reach, ahead = self.terms, _FIRST_REACH, self.mixed
        return replace(best, solved=rounds)

    def at(self, mix: Mix) -> Bound | None:
        """The bound for some weights; None where the limits end its problem before any strategy was found."""
        weights = self._weights(mix)
        # What depends on the weights is of no use for others.
        self.tables = replace(self.tables, costs={}, tables={})
        problem = self._priced(weights)
        floor = sum(float(costs.min()) for costs in problem.problem.unary)
        try:
            solution = solve(problem.problem, limits=replace(self.limits, allowance=_CLOSE * floor))
        except LimitReached:
            return None
        totals = weights.totals(problem, solution.assignment, self.tables)
        self.met.append(totals)
        seconds = self.stepped(solution.lower_bound) * (1.0 - _ROUNDING)
        named = {term.name: totals.get(term, 0.0) for term in self.terms}
        return Bound(seconds, {term.name: weight for term, weight in mix.items() if weight > 1e-9}, named)

    def runs(self) -> dict[ComputeOp, Runs]:
        """
        Return the least seconds of every op of a stage. One run counts nothing where devices differ, or where
        `split-backward` may divide the op; both halves depend on the gradient alone.
        """
        found: dict[ComputeOp, Runs] = {}
        for decision, seconds in zip(self.problem.decisions, self.problem.seconds, strict=True):
            if seconds is not None and isinstance(op := decision.subject, ComputeOp):
                total = float(seconds.min())
                counts = self.loop.turns_of(op).count if self.loop is not None else 1
                if _is_halved(op):
                    gradients = (at for at, name in enumerate(op.operand_names()) if name.startswith("grad"))
                    found[op] = Runs(0.0, total, tuple(op.args[at] for at in gradients), halved=True)
                else:
                    found[op] = Runs(0.0 if self.is_mixed else total / counts, total, op.args)
        return found

    def _count_halves(self) -> None:
        """Price an op that `split-backward` may divide at the highest rates, since its halves may have any sizes."""
        parts = least_parts(self.view.func)
        for node, decision in enumerate(self.problem.decisions):
            if isinstance(op := decision.subject, ComputeOp) and _is_halved(op):
                part = parts.get(op)
                turns = self.loop.turns_of(op) if self.loop is not None else ONCE
                states = [state for state in decision.states if isinstance(state, Signature)]
                works = [op_work(op, each, self.view.mesh, keyed=False, turns=turns, part=part) for each in states]
                least = [op_seconds(self.cluster.kinds_used[0], work, joins=True) for work in works]
                self.problem.seconds[node] = turns.count * np.array(least)

    def _weights(self, mix: Mix) -> BoundWeights:
        return BoundWeights(mix=mix, outline=self.outline, mesh=self.view.mesh, wires=self.wires, started=self.started)

    def _priced(self, weights: BoundWeights) -> StrategyProblem:
        """The problem at some weights: the decisions stay, and what depends on no pair of them is not built again."""
        unary = list(self.problem.problem.unary)
        for node, (decision, seconds) in enumerate(zip(self.problem.decisions, self.problem.seconds, strict=True)):
            if seconds is not None and isinstance(decision.subject, ComputeOp):
                factor = weights.of_op(decision.subject)
                unary[node] = self.unary.setdefault((id(seconds), factor), factor * seconds)
        edges: list[Edge] = []
        traffic: list[EdgeTraffic] = []
        for edge, each in zip(self.problem.problem.edges, self.problem.traffic, strict=True):
            price = weights.price(each.move)
            if price.weight:
                table = self.tables.table(each.move.value, each.splits, each.sources, each.targets, price)
                if table is not None:
                    edges.append(Edge(edge.u, edge.v, table))
                    traffic.append(replace(each, price=price))
        return replace(self.problem, problem=Problem(tuple(unary), tuple(edges)), traffic=traffic)

    def stepped(self, seconds: float) -> float:
        """Return a bound of the step from undisturbed seconds: with the fixed cost, and the fastest interference."""
        return self.slowest * seconds + self.overhead

    @property
    def ops(self) -> Mix:
        """Give all weight to the ops."""
        return {Term(0, self.outline.end, "compute"): 1.0}

    @property
    def main(self) -> list[Term]:
        """Return the terms of the whole step."""
        return [Term(0, self.outline.end, what) for what in ("compute", *self.wires)]

    @property
    def mixed(self) -> Mix:
        """Give about a third of the weight to ops, to paths, and to wires from the first cut on."""
        end = self.outline.end
        mixed = dict.fromkeys((term for term in self.terms if term.what == "path"), 0.3)
        mixed |= {Term(min(1, end - 1), end, wire): 0.3 / len(self.wires) for wire in self.wires}
        return mixed | {Term(0, end, "compute"): 0.4}


def _is_halved(op: ComputeOp) -> TypeGuard[AtenOp]:
    """Return whether an op may become two: one for the gradient of its input, one for the gradients of its weights."""
    return isinstance(op, AtenOp) and op.overload in SPLIT


def _same(mix: Mix, other: Mix) -> bool:
    return all(abs(weight - other.get(term, 0.0)) < _CLOSE / 10.0 for term, weight in mix.items())


def _alike(cluster: Cluster, view: StepView) -> Cluster:
    """
    The cluster with every device of the kind that takes longest for the step.

    Ranks of every kind go through the whole program, with the same shares; the step takes as long as those of one kind.
    """
    if len(cluster.kinds_used) == 1:
        return cluster
    each = [replace(cluster, placement=(kind,) * len(cluster.placement)) for kind in sorted(set(cluster.placement))]
    return max(each, key=lambda alike: sum(_least_seconds(view, alike).values()))


def _least_seconds(view: StepView, cluster: Cluster) -> dict[ComputeOp, float]:
    """By op, the seconds with the signature that takes least."""
    known: dict[object, float] = {}
    found: dict[ComputeOp, float] = {}
    parts = least_parts(view.func)
    for op in view.ops:
        key = (op.use_key(), id(op.rule()), may_join(op), parts.get(op))
        if key not in known:
            every = tuple(signatures(op.rule(), view.mesh, None))
            known[key] = min(seconds_by_signature(op, every, cluster, joining=True, part=parts.get(op)))
        found[op] = known[key]
    return found


def _next_mix(met: Sequence[Mapping[Term, float]], terms: Sequence[Term], best: Mix, reach: float) -> tuple[Mix, float]:
    """
    The weights near `best` at which the strategies met so far have the largest least sum, and that sum.

        maximise  t   subject to   t <= sum_term w_term * seconds_term(x)    for every x met
                                   |w - best| <= reach,   sum_(terms that span s) w_term <= 1   for every segment s
    """
    program = LinearProgram()
    scale = 1.0 / max(max(seconds.values(), default=1.0) or 1.0 for seconds in met)
    weights: dict[Term, int] = {}
    for term in terms:
        near = best.get(term, 0.0)
        weights[term] = program.variable(max(near - reach, least_weight(term)), min(near + reach, 1.0))
    hoped = program.variable(0.0)
    for segment in segment_sums(best):
        program.limit({w: 1.0 for term, w in weights.items() if term.begin <= segment < term.end}, high=1.0)
    for seconds in met:
        program.limit({hoped: -1.0} | {weights[term]: scale * seconds.get(term, 0.0) for term in terms}, 0.0)
    if (values := program.minimized({hoped: -1.0})) is None:
        return best, 0.0
    return normalised({term: round(values[at], 9) for term, at in weights.items()}), values[hoped] / scale
