"""
A proven lower bound of the simulated step: no plan of a family has a shorter one.

    B(w)      =  min over strategies x of  sum_terms w_term * seconds_term(x)        `_Bounding.at`
    bound     =  max over the weights w tried of B(w)                                `step_bound`
    of layouts:  the least bound of each                                             `plan_bound`

The terms, and why each weighted sum of them is a bound, are in `bound_terms.py`. Each B(w) is a discrete problem like
that of the search, solved exactly, or bounded from below where `Limits` end it. B is concave, and every strategy met
gives a linear function above it: the next weights are the best for all of those met so far, near the best so far
(`_next_mix`, a cutting-plane method in a box that shrinks where it did not help).

Covered are all programs that `insert-resharding`, `select-collectives` and `overlap`, with any options, make of any
signatures, homes and working copies, the batch being whole and shares even. Of plans that cut the batch, or whose
devices have shares by their speed, the total work is a bound: `compute_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...dialects.compute import ComputeOp
from ...ir.cluster import Cluster, Device
from ...ir.mesh import Mesh
from ...ir.op_cost import OpRate, OpWork, op_rate, op_seconds
from ...ir.signatures import signatures
from ..analysis.compute import op_work, seconds_by_signature
from ..analysis.stage_costs import whole_signature
from ..search.eliminate import LimitReached, Limits, solve
from ..search.pins import Constraints, apply_pins
from ..search.shared_tables import Tables
from ..search.step_view import StepView
from ..search.strategy import StrategyProblem, build_problem
from .bound_terms import BoundWeights, Mix, Term, normalised, outline_of, started_axes, streams, term_name, terms_of
from .candidates import Layout
from .workbench import Workbench

LIMITS = Limits(entries=2_000_000, cheap_work=5_000_000, work=100_000_000, branches=4)
"""What solving one problem may take."""

ROUNDS = 10
"""How many weights are tried."""

_ROUNDING = 1e-9
"""By what part a bound is lowered, since the solver takes costs as equal that differ by less."""

_CLOSE = 1e-3
"""How near to the optimum of a problem its solution need be, and how near to the best bound weights need come."""

_FIRST_REACH = 0.4
"""How far each weight may be from the best so far, at first."""


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


def step_bound(
    view: StepView,
    cluster: Cluster,
    constraints: Constraints | None = None,
    *,
    rounds: int = ROUNDS,
    enough: float = math.inf,
    start: Mix | None = None,
    limits: Limits = LIMITS,
) -> Bound:
    """
    The bound of all whole-batch plans with even shares of a step on one mesh.

    Args:
        constraints: what the plans obey. Of pins, those of working copies do not count.
        rounds: how many weights are tried at most.
        enough: seconds from which on no better bound is of interest.
        start: the weights tried first.
    """
    return _Bounding(view, cluster, constraints or Constraints(), limits).run(start, rounds, enough)


def plan_bound(
    bench: Workbench, meshes: Iterable[Mesh], *, rounds: int = ROUNDS, target: float = math.inf, fused: bool = True
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
            bounding = _Bounding(view, cluster, apply_pins(bench.pins, view), LIMITS)
            parts.append(bounding.run(start, rounds, enough))
            start = bounding.best if layout.mesh.axes and start is None else start
            seconds += parts[-1].seconds
        solved += sum(part.solved for part in parts)
        if parts and (least is None or seconds < least.seconds):
            least = parts[0] if len(parts) == 1 else Bound(seconds)
    return replace(least, solved=solved) if least is not None else Bound(0.0)


class _Bounding:
    """The bound of one step on one mesh; one use."""

    def __init__(self, view: StepView, cluster: Cluster, constraints: Constraints, limits: Limits) -> None:
        self.view, self.limits = view, limits
        self.cluster = _alike(cluster, view)
        self.constraints = replace(constraints, copies={}, regathered=set())
        self.tables = Tables(self.cluster)
        least = _least_seconds(view, self.cluster)
        self.outline = outline_of(view, least)
        self.terms = terms_of(view.mesh)
        self.started = started_axes(cluster)
        self.best: Mix = {}
        self.met: list[Mapping[Term, float]] = []
        rank = next(iter(range(cluster.mesh.device_count)))
        self.overhead = min(self.cluster.device(rank).overhead, *(each.overhead for each in cluster.kinds_used))
        around = self.cluster.interference
        # Where computing is quicker while something is sent, all of it might be.
        self.slowest = min(1.0, around.compute, around.communication)

    def run(self, start: Mix | None, rounds: int, enough: float) -> Bound:
        """Try weights until no better ones are near."""
        mix = normalised({term: (start or self._first()).get(term, 0.0) for term in self.terms})
        best, reach = Bound(0.0), _FIRST_REACH
        for number in range(rounds):
            found = self.at(mix)
            if found is None:
                return replace(best, solved=number + 1)
            better = found.seconds > best.seconds
            if better:
                best, self.best = found, mix
            else:
                reach /= 2.0
            mix, hoped = _next_mix(self.terms, self.met, self.best, reach)
            if best.seconds >= enough or self._stepped(hoped) <= (1.0 + _CLOSE) * best.seconds:
                return replace(best, solved=number + 1)
        return replace(best, solved=rounds)

    def at(self, mix: Mix) -> Bound | None:
        """The bound for some weights; None where the limits end its problem before any strategy was found."""
        weights = BoundWeights(
            mix=mix, outline=self.outline, streams=tuple(streams(self.view.mesh)), started=self.started
        )
        # What depends on the weights is of no use for others.
        self.tables = replace(self.tables, costs={}, tables={})
        problem = build_problem(self.view, self.cluster, self.constraints, weights, tables=self.tables)
        floor = sum(float(costs.min()) for costs in problem.problem.unary)
        try:
            solution = solve(problem.problem, limits=replace(self.limits, allowance=_CLOSE * floor))
        except LimitReached:
            return None
        totals = weights.totals(problem, solution.assignment, self.tables)
        self.met.append(totals)
        seconds = self._stepped(solution.lower_bound) * (1.0 - _ROUNDING)
        named = {term_name(term): totals.get(term, 0.0) for term in self.terms}
        return Bound(seconds, {term_name(term): weight for term, weight in mix.items() if weight > 1e-9}, named)

    def _stepped(self, seconds: float) -> float:
        return self.slowest * seconds + self.overhead

    def _first(self) -> Mix:
        """Weights to begin with: half of the step as a whole, half in its parts, half of these to compute."""
        groups = streams(self.view.mesh)
        each = 0.2 / len(groups) if groups else 0.0
        found: dict[Term, float] = {("step", "compute"): 0.3, ("first", "compute"): 0.25, ("first", "path"): 0.25}
        found |= {("rest", "compute"): 0.2, ("rest", "path"): 0.1}
        found |= {("step", axes): each for axes in groups}
        return found | {("rest", axes): each for axes in groups}


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
    for op in view.ops:
        key = (op.use_key(), id(op.rule()))
        if key not in known:
            known[key] = min(seconds_by_signature(op, tuple(signatures(op.rule(), view.mesh, None)), cluster))
        found[op] = known[key]
    return found


def _next_mix(
    terms: Sequence[Term], met: Sequence[Mapping[Term, float]], best: Mix, reach: float
) -> tuple[Mix, float]:
    """
    The weights near `best` at which the strategies met so far have the largest least sum, and that sum.

        maximise  t   subject to   t <= sum_term w_term * seconds_term(x)    for every x met
                                   |w - best| <= reach,  and w a mix
    """
    # OR-tools takes half a second to import; opt-tool starts without it.
    from ortools.linear_solver.python import model_builder

    total = model_builder.LinearExpr.sum  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    model = model_builder.Model()
    scale = 1.0 / max(max(seconds.values(), default=1.0) or 1.0 for seconds in met)
    weights = {
        term: model.new_num_var(max(best.get(term, 0.0) - reach, 0.0), min(best.get(term, 0.0) + reach, 1.0), None)
        for term in terms
    }
    parts = model.new_num_var(0.0, 1.0, None)
    hoped = model.new_num_var(0.0, math.inf, None)
    of = {part: [weights[term] for term in terms if term[0] == part] for part in ("step", "first", "rest")}
    model.add(total([*of["step"], parts]) == 1.0)
    model.add(total(of["first"]) - parts == 0.0)
    model.add(total(of["rest"]) - parts == 0.0)
    for seconds in met:
        model.add(total([(scale * seconds.get(term, 0.0)) * weights[term] for term in terms]) - hoped >= 0.0)
    model.maximize(hoped)
    solver = model_builder.Solver("glop")
    if solver.solve(model) != model_builder.SolveStatus.OPTIMAL:
        return best, 0.0
    return normalised({term: round(solver.value(weights[term]), 9) for term in terms}), solver.value(hoped) / scale
