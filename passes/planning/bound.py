"""
A proven lower bound of the simulated step: no plan of a family is faster.

    B(w)                      =  min over strategies x of  sum_terms w_term * seconds_term(x)        `_Bounding.at`
    bound                     =  max over the weights w tried of B(w)                                `_Bounding.run`
    bound of several layouts  =  min over the layouts of their bounds                                `plan_bound`

`bound_terms.py` defines the terms, and proves that each weighted sum is a bound. Each B(w) is a discrete problem like
that the search solves; it is solved exactly, or bounded from below if `Limits` end the solver. B is concave, and each
strategy found so far gives a linear function that is an upper bound of B. The next weights maximise the least of these
functions in a box around the best weights so far (`_next_mix`, a cutting-plane method); the box shrinks when the bound
does not improve.

The bound covers all programs that `insert-resharding`, `select-collectives`, `overlap` and `join-updates`, with any
options, make from any signatures, homes and working copies, if the batch is whole and shares are even. `parts_bound`
covers plans that cut the batch, and `compute_bound`, by the total work, plans with shares by the speed of devices.
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
"""Limits for solving one problem."""

ROUNDS = 10
"""Number of weights that are tried."""

_ROUNDING = 1e-9
"""Relative reduction of a bound: the solver treats costs as equal that differ by less."""

_CLOSE = 1e-3
"""Tolerated gap of a problem's solution to its optimum, and of weights to the best bound, both relative."""

_FIRST_REACH = 0.2
"""Initial half-width of the box around the best weights so far."""

_MAIN_REACH = 0.5
"""Half-width of the box while only the terms of the whole step have weights."""


@dataclass(frozen=True)
class Bound:
    """
    A lower bound of the simulated step.

    Args:
        weights: weights of its terms, by name (`compute 0-3`, `node gpu 1-3`, `path 0-1`).
        by: unweighted seconds of the terms, by name, under the strategy with the least weighted sum.
        solved: number of problems solved.
    """

    seconds: float
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    by: Mapping[str, float] = field(default_factory=dict[str, float])
    solved: int = 0


def plan_bound(
    bench: CandidateCompiler, layouts: Iterable[Layout], *, rounds: int = ROUNDS, target: float = math.inf
) -> Bound:
    """
    Return the bound of all plans with even shares on some layouts, which is the least over the layouts.

    Args:
        layouts: layouts of the whole batch; the search is quicker if the layout with the least bound comes early.
        target: seconds that are good enough; a bound of at least `target` is not improved.
    """
    least: Bound | None = None
    start: Mix | None = None
    solved = 0
    for layout in layouts:
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
    bound = replace(least, solved=solved) if least is not None else Bound(0.0)
    # The bound of all plans may be slightly larger, by rounding of the weights.
    return replace(bound, seconds=max(bound.seconds, compute_bound(bench)))


def parts_bound(bench: CandidateCompiler, layout: Layout, *, rounds: int = ROUNDS, target: float = math.inf) -> float:
    """
    Return the bound of all plans with even shares on a layout that cuts the batch, with or without stages.

    It is the largest of three bounds: by the ops of a stage and the paths before and after them (`bound_parts.py`), by
    the ops and collectives of the stage that computes most, and by the total work of the step.

    The second bound is B(w) where an op counts all its runs at their real sizes, and a change of sharding counts once,
    with the bytes of the whole value. Parts hold different rows, so that together they send these bytes; a sum over
    parts, or a value that all parts use, is sent at least once.
    """
    stages = bench.keeping(layout.keep).laid_out(layout)
    clusters = [cluster for _, cluster in stages]
    bound = compute_bound(bench)
    if len({view.func for view, _ in stages}) > 1 or has_tables(bench.cluster.kinds_used):
        return bound
    whole = stages[0][0].whole
    batch = Batch(bench.rows, AXIS, layout.parts, layout.mode == "duplex")
    parts_found = find_parts(list(whole.func.body.block.ops), whole.inputs, batch)
    loop = BatchLoop(layout.parts, parts_found, in_flight=layout.parts)
    parts = [_Bounding(v, c, constraints_of(v), LIMITS, bench.tables_of(c), loop) for v, c in stages]
    runs = {op: each for part in parts for op, each in part.runs().items()}
    crossing = crossing_seconds(whole.func, loop, on_mesh(bench.cluster, layout.mesh), clusters)
    queued = queued_seconds(whole.func, runs, crossing)
    bound = max(bound, min(part.stepped(queued) for part in parts))
    if bound >= target:
        return bound
    most = max(parts, key=lambda part: sum(run.total for run in part.runs().values()))
    return max(bound, most.run(None, rounds, target).seconds)


def compute_bound(bench: CandidateCompiler) -> float:
    """
    Return the bound of all plans by their total work: all devices share each op in the best proportions, at the speed
    of its most efficient size; launches and communication are free.

    Let s_or be the share of op o on device r (they sum to 1 over r), t_or the seconds of all of o on r, and w_r
    non-negative weights of the devices that sum to 1. Then

        step  >=  sum_r w_r sum_o s_or t_or  >=  sum_o min_r w_r t_or

    This covers plans that cut the batch (accumulation, duplex, stages) and shares by speed. The bound is 0 if a device
    has measured times of single ops, since these may be arbitrary.
    """
    kinds = bench.cluster.kinds_used
    if has_tables(kinds):
        return 0.0
    devices = [bench.cluster.device(rank) for rank in range(bench.cluster.mesh.device_count)]
    counts = [sum(device is kind for device in devices) for kind in kinds]
    around = bench.cluster.interference
    bounds: list[float] = []
    for module in (bench.module, bench.fused) if bench.has_batch_norm else (bench.module,):
        alone: list[list[float]] = []
        for func in step_functions(module):
            parts = least_parts(func)
            ops = StepView(func, bench.own_mesh).ops
            alone += [[_without_launch(op, kind, parts.get(op)) for kind in kinds] for op in ops]
        totals = [sum(row[k] for row in alone) or 1.0 for k in range(len(kinds))]
        speed = sum(count / total for count, total in zip(counts, totals, strict=True))
        weights = [1.0 / total / speed for total in totals]
        bounds.append(sum(min(w * t for w, t in zip(weights, row, strict=True)) for row in alone))
    return min(1.0, around.compute) * min(bounds) + min(kind.overhead for kind in kinds)


def _without_launch(op: ComputeOp, device: Device, part: KernelPart | None) -> float:
    """Return the least seconds of a whole op on a device, however the batch is cut."""
    if isinstance(op, AssignOp):
        return 0.0
    return op_seconds(device, op_work(op, whole_signature(op), Mesh(()), keyed=False, part=part), joins=True)


class _Bounding:
    """Computes the bound of one step on one mesh; an instance is used once."""

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
        shared = tables if tables is not None and self.cluster is cluster else Tables(self.cluster)
        self.tables = replace(shared, costs={}, tables={})
        self.outline = outline_of(view, _least_seconds(view, self.cluster)) if loop is None else uncut(view)
        self.wires = wires_of(self.cluster)
        self.terms = self.outline.terms(self.wires)
        self.started = started_axes(cluster)
        all_weights = self._weights(dict.fromkeys(self.terms, 1.0))
        self.problem = build_problem(view, self.cluster, self.constraints, all_weights, tables=self.tables, loop=loop)
        if view.stage is not None:
            self._count_halves()
        self.unary: dict[tuple[int, float], Costs] = {}
        self.best: Mix = {}
        self.met: list[Mapping[Term, float]] = []
        self.is_mixed, self.overhead = len(cluster.kinds_used) > 1, min(kind.overhead for kind in cluster.kinds_used)
        around = self.cluster.interference
        # Interference may speed up compute or communication; a bound must assume that it does so throughout.
        self.slowest = min(1.0, around.compute, around.communication)

    def run(self, start: Mix | None, rounds: int, enough: float) -> Bound:
        """Try weights of the terms of the whole step, then of all terms, until nearby weights promise no more."""
        ahead, best = start or self.ops, Bound(0.0)
        terms, reach = (self.terms, _FIRST_REACH) if start else (self.main, _MAIN_REACH)
        for number in range(1, rounds + 1):
            mix = normalised({term: ahead.get(term, 0.0) for term in self.terms})
            if (bound := self.at(mix)) is None:
                return replace(best, solved=number)
            if bound.seconds > best.seconds:
                best, self.best = bound, mix
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
        """Return the bound for some weights, or None if the limits end the solver before it finds a strategy."""
        weights = self._weights(mix)
        # Tables that depend on the weights are useless for other weights.
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
        Return the least seconds of every op of a stage. One run counts 0 seconds if devices differ, or if
        `split-backward` may divide the op; both halves depend on the gradient alone.
        """
        runs: dict[ComputeOp, Runs] = {}
        for decision, seconds in zip(self.problem.decisions, self.problem.seconds, strict=True):
            if seconds is not None and isinstance(op := decision.subject, ComputeOp):
                total = float(seconds.min())
                counts = self.loop.turns_of(op).count if self.loop is not None else 1
                if _is_halved(op):
                    gradients = (at for at, name in enumerate(op.operand_names()) if name.startswith("grad"))
                    runs[op] = Runs(0.0, total, tuple(op.args[at] for at in gradients), halved=True)
                else:
                    runs[op] = Runs(0.0 if self.is_mixed else total / counts, total, op.args)
        return runs

    def _count_halves(self) -> None:
        """Price an op that `split-backward` may divide at the highest rates, since its halves may have any size."""
        parts = least_parts(self.view.func)
        for node, decision in enumerate(self.problem.decisions):
            if isinstance(op := decision.subject, ComputeOp) and _is_halved(op):
                part = parts.get(op)
                turns = self.loop.turns_of(op) if self.loop is not None else ONCE
                states = [state for state in decision.states if isinstance(state, Signature)]
                works = [op_work(op, state, self.view.mesh, keyed=False, turns=turns, part=part) for state in states]
                least = [op_seconds(self.cluster.kinds_used[0], work, joins=True) for work in works]
                self.problem.seconds[node] = turns.count * np.array(least)

    def _weights(self, mix: Mix) -> BoundWeights:
        return BoundWeights(mix=mix, outline=self.outline, mesh=self.view.mesh, wires=self.wires, started=self.started)

    def _priced(self, weights: BoundWeights) -> StrategyProblem:
        """Return the problem at some weights, with the same decisions and with cached costs of ops."""
        unary = list(self.problem.problem.unary)
        for node, (decision, seconds) in enumerate(zip(self.problem.decisions, self.problem.seconds, strict=True)):
            if seconds is not None and isinstance(decision.subject, ComputeOp):
                factor = weights.of_op(decision.subject)
                unary[node] = self.unary.setdefault((id(seconds), factor), factor * seconds)
        edges: list[Edge] = []
        traffic: list[EdgeTraffic] = []
        for edge, change in zip(self.problem.problem.edges, self.problem.traffic, strict=True):
            price = weights.price(change.move)
            if price.weight:
                table = self.tables.table(change.move.value, change.splits, change.sources, change.targets, price)
                if table is not None:
                    edges.append(Edge(edge.u, edge.v, table))
                    traffic.append(replace(change, price=price))
        return replace(self.problem, problem=Problem(tuple(unary), tuple(edges)), traffic=traffic)

    def stepped(self, seconds: float) -> float:
        """Return a bound of the step from seconds without interference: add the fixed cost, and assume the fastest."""
        return self.slowest * seconds + self.overhead

    @property
    def ops(self) -> Mix:
        """Return the mix with all weight on the ops."""
        return {Term(0, self.outline.end, "compute"): 1.0}

    @property
    def main(self) -> list[Term]:
        """Return the terms of the whole step."""
        return [Term(0, self.outline.end, what) for what in ("compute", *self.wires)]

    @property
    def mixed(self) -> Mix:
        """Return a mix with about a third of the weight each on ops, on paths, and on wires from the first cut on."""
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
    Return the cluster with every device of the kind that takes longest for the step.

    Ranks of every kind run the whole program with the same shares, so the step lasts at least as long as on each kind.
    """
    if len(cluster.kinds_used) == 1:
        return cluster
    clusters = [replace(cluster, placement=(kind,) * len(cluster.placement)) for kind in sorted(set(cluster.placement))]
    return max(clusters, key=lambda alike: sum(_least_seconds(view, alike).values()))


def _least_seconds(view: StepView, cluster: Cluster) -> dict[ComputeOp, float]:
    """Return the seconds of each op with its fastest signature."""
    by_key: dict[object, float] = {}
    least: dict[ComputeOp, float] = {}
    parts = least_parts(view.func)
    for op in view.ops:
        key = (op.use_key(), id(op.rule()), may_join(op), parts.get(op))
        if key not in by_key:
            choices = tuple(signatures(op.rule(), view.mesh, None))
            by_key[key] = min(seconds_by_signature(op, choices, cluster, joining=True, part=parts.get(op)))
        least[op] = by_key[key]
    return least


def _next_mix(met: Sequence[Mapping[Term, float]], terms: Sequence[Term], best: Mix, reach: float) -> tuple[Mix, float]:
    """
    Return the weights w near `best` that maximise the least sum t over the strategies found so far, and that least sum.

        maximise  t   subject to   t <= sum_term w_term * seconds_term(x)    for every x found so far
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
