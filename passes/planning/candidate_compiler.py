"""Compile candidates: find a strategy on a layout, apply the passes that make its program, and simulate the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from math import inf

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import PassFailedException

from ...dialects import train
from ...dialects.compute import ComputeOp, value_bytes
from ...dialects.ratios import ratios_of, set_ratios
from ...ir.cluster import Cluster
from ...ir.mesh import Mesh
from ...ir.signatures import Choice
from ...ir.submesh import on_mesh
from ..add_cluster import add_cluster
from ..analysis.simulation.results import time_spent
from ..analysis.simulation.simulate import simulate_module
from ..balance_ratios import BalanceRatiosPass
from ..partition_stages import PartitionStagesPass
from ..pipeline import Pipeline, run_pipeline
from ..pipelines import AXIS, SUM_BATCH_NORMS
from ..recompute import RecomputePass
from ..search.constraints import Constraints, constraints_of, pin_entries, pins_places
from ..search.decided import Counterparts, strategy_of, unpacked
from ..search.eliminate import LimitReached, Limits, combined, solve
from ..search.memory import Prices, Strategy
from ..search.objective import BatchLoop, Weights
from ..search.pin_file import PinError
from ..search.pins import apply_pins, resolve_pins
from ..search.problem import Infeasible, Problem, Solution, States
from ..search.shared_tables import Tables
from ..search.strategy import build_problem
from ..search.strategy_problem import StrategyProblem, StrategySums, repriced
from ..search.within_memory import HEADROOM, solve_within
from ..shares.respread import respread
from ..step.batch_parts import Batch, BatchParts, find_parts
from ..step.factors import Factors
from ..step.layers import find_layers
from ..step.step_view import StepView, batch_rows, mesh_of_module, step_functions, step_views
from .candidates import Candidate, Layout
from .fold import Folder, Folding
from .fold import folding as folding_of
from .layout_times import LayoutTimes
from .notes import Refused
from .shrink import short_steps
from .solutions import MOST_HIDDEN, Finished, LaidOut, PackedSolved, Solved

BATCH_NORMS = ("aten._native_batch_norm_legit_functional", "aten.native_batch_norm_backward")

LIMITS = Limits(entries=500_000, cheap_work=2_000_000, work=10_000_000, sweeps=(12, 6, 6, 6), branches=1)
"""Limits for solving one candidate. A candidate only has to be good: `bound.py` computes the bounds separately."""

THOROUGH = Limits(entries=5_000_000, cheap_work=10_000_000, work=300_000_000, branches=8)
"""Limits for a candidate that may win, if its solution within `LIMITS` may be far from the optimum."""

_FAR = 0.1
"""Gap to the lower bound, relative to the cost of a solution, above which the problem is solved again, thoroughly."""

_GOOD_ENOUGH = 0.03
"""Allowed gap of a candidate's strategy to the optimum of its problem, relative to the least seconds of its ops."""


Narrow = Callable[[StepView, Constraints], None]
"""Changes the constraints of one stage beyond its pins, for example to fix one decision or to leave it open."""


class CandidateCompiler:
    """
    Compiles candidates of one step on one cluster.

    Args:
        module: the step, with its cluster and without decisions; every candidate obeys its pins.
        folding: folding of a longer step whose strategies this step will take; by default the step's own folding.
        tables: cost tables by cluster, shared with other compilers.
        keep: largest fraction of activations to keep (`recompute`), for all layouts.
    """

    def __init__(
        self,
        module: ModuleOp,
        cluster: Cluster,
        folding: Folding | None = None,
        tables: dict[Cluster, Tables] | None = None,
        keep: float = 1.0,
    ) -> None:
        self.fused, self.cluster, self.keep = module, cluster, keep
        self.is_pinned = pins_places(module)
        self.ctx = Context()
        self.has_batch_norm = any(op.name in BATCH_NORMS for op in module.walk())
        self.module = module.clone()
        if self.has_batch_norm:
            run_pipeline(self.ctx, self.module, SUM_BATCH_NORMS, verify_each=False)
        if keep < 1:
            self.fused = module.clone()
            for version in (self.fused, self.module):
                RecomputePass(keep).apply(self.ctx, version)
        self.views = [StepView(func, mesh_of_module(module)) for func in step_functions(self.module)]
        self.size = sum(len(view.ops) for view in self.views)
        self._folding = folding
        self._given, self._keeping = module, dict[float, CandidateCompiler]()
        self._laid_out: dict[Layout, LaidOut] = {}
        self._folders: dict[Layout, Folder] = {}
        self._states = 0
        self._cuts: dict[bool, BatchParts | str] = {}
        self._tables: dict[Cluster, Tables] = tables if tables is not None else {}
        self._cannot: dict[Layout, str] = {}
        self._problems: dict[tuple[Layout, int | None], tuple[StrategyProblem, Weights]] = {}

    def keeping(self, keep: float) -> CandidateCompiler:
        """Return a compiler of the same step that keeps another fraction of activations; itself if it is the same."""
        if keep == self.keep:
            return self
        if keep not in self._keeping:
            compiler = CandidateCompiler(self._given, self.cluster, tables=self._tables, keep=keep)
            self._keeping[keep] = compiler.on(self.cluster)
        return self._keeping[keep]

    def on(self, cluster: Cluster) -> CandidateCompiler:
        """Return a compiler of the same step on another cluster; the step and its short forms are shared."""
        other = copy(self)
        other.cluster, other.views = cluster, [StepView(view.func, cluster.mesh) for view in self.views]
        other._keeping, other._laid_out, other._folders, other._cannot, other._problems = {}, {}, {}, {}, {}
        other._states = 0
        for name in ("_short", "times"):
            other.__dict__.pop(name, None)
        return other

    @cached_property
    def lasting_bytes(self) -> int:
        """Return the bytes of parameters and optimizer states, which the devices of a plan hold at least once."""
        inputs = (given for view in self.views for given in view.inputs)
        return sum(value_bytes(given.argument) for given in inputs if given.role in (train.PARAM, train.STATE))

    @cached_property
    def short_steps(self) -> tuple[ModuleOp, ModuleOp, int] | None:
        """Return two short steps that judge this one, the longer first, and how many layers the longer lacks."""
        return short_steps(self.fused)

    @cached_property
    def times(self) -> LayoutTimes:
        """Return the bounds and estimates of the times of layouts."""
        return LayoutTimes(self.views, self.cluster, lambda unrolled: self._cut(unrolled=unrolled))

    @cached_property
    def folding(self) -> Folding | None:
        """Return how few layers represent equal layers, or None if no layers are equal or pins distinguish them."""
        return self._folding or (None if self.is_pinned else folding_of(self.module))

    @property
    def rows(self) -> int:
        """Return the rows of the batch, or 1 if it has no dim to cut."""
        return batch_rows(value for view in self.views for value in view.inputs) or 1

    @property
    def layers(self) -> int:
        """Return the number of layers that stages can divide."""
        return min(len(find_layers(view).names) for view in self.views)

    @property
    def own_mesh(self) -> Mesh:
        """Return the mesh of the cluster as the user gave it."""
        return self.views[0].mesh

    def estimates(self, solved: Solved) -> tuple[float, float]:
        """Return estimates of the step of a solved candidate: its least seconds, and its expected seconds."""
        slowest = self.times.slowest
        return solved.optimistic_seconds(slowest), solved.expected_seconds(slowest)

    def cut_refusal(self, *, unrolled: bool = False) -> str | None:
        """Return why the batch cannot be cut into parts, or None if it can."""
        cut = self._cut(unrolled=unrolled)
        if isinstance(cut, str):
            return cut
        rows = f"no op works on a part of the {self.rows} rows, so each part would compute all of the step"
        return None if self.in_parts(unrolled=unrolled)[0] else rows

    def in_parts(self, *, unrolled: bool) -> tuple[int, int]:
        """Return how many ops of forward and backward work on parts of the batch, and how many there are in total."""
        cut = self._cut(unrolled=unrolled)
        choices = dict[ComputeOp, Choice]() if isinstance(cut, str) else cut.choices
        choices = [choice for op, choice in choices.items() if not train.is_update(op)]
        return sum(choice is not None for choice in choices), len(choices)

    def _cut(self, *, unrolled: bool) -> BatchParts | str:
        """Return how a batch is cut in two parts, which stand for more, or why it cannot be cut."""
        if unrolled not in self._cuts:
            cut = BatchParts()
            try:
                for view in self.views:
                    batch = Batch(self.rows, AXIS, 2, unrolled)
                    found = find_parts(list(view.func.body.block.ops), view.inputs, batch)
                    cut = BatchParts(cut.choices | found.choices, cut.values | found.values)
                self._cuts[unrolled] = cut
            except PassFailedException as error:
                self._cuts[unrolled] = str(error)
        return self._cuts[unrolled]

    @cached_property
    def _short(self) -> CandidateCompiler | None:
        """Return the compiler of the short step that represents this step."""
        if self.folding is None:
            return None
        return CandidateCompiler(self.folding.module, self.cluster, tables=self._tables)

    @cached_property
    def _counterparts(self) -> Counterparts | None:
        return self.folding.counterparts(self.module) if self.folding is not None else None

    def is_folded(self, candidate: Candidate) -> bool:
        """Return whether a candidate's strategy repeats decisions in equal layers, so that it is found quickly."""
        layout, choice = candidate.layout, candidate.choice
        plain = not (layout.fused or choice.balanced or choice.fits)
        return plain and layout.stages == 1 and self._counterparts is not None

    @property
    def states(self) -> int:
        """Return the number of alternatives of all decisions in all problems built so far."""
        return self._states + (self._short.states if self._short is not None else 0)

    def solve(self, candidate: Candidate, narrow: Narrow | None = None, worth: float = inf) -> Solved:
        """
        Find the strategy of a candidate; raise Refused if it has none.

        Args:
            worth: seconds of a step that is known; if no strategy that fits can be faster, it may be refused, and less
                effort is spent if the objective of every strategy is above it.
        """
        try:
            if narrow is None and self.is_folded(candidate) and (solved := self._folded(candidate, worth)) is not None:
                return solved
            step = self._lay_out(candidate.layout.without_time)
            # Shares by speed may make a strategy far faster than it is with even shares.
            strategies = self._strategies(candidate, step, narrow, inf if candidate.choice.balanced else worth)
            if candidate.choice.balanced:
                # Strategy and shares are found in turn (HAP, 3.1); `written` finds the last shares.
                module = step.written([strategy for strategy, _ in strategies])
                BalanceRatiosPass().apply(self.ctx, module)
                with suppress(PassFailedException, Infeasible, LimitReached):
                    # With uneven shares, no other strategy may fit.
                    uneven = LaidOut.of(module)
                    step, strategies = uneven, self._strategies(candidate, uneven, narrow, worth)
        except (PassFailedException, PinError, Infeasible, LimitReached) as error:
            raise Refused(str(error)) from error
        return Solved(candidate, step, tuple(strategies))

    def _folded(self, candidate: Candidate, worth: float) -> Solved | None:
        """Return a strategy with equal decisions in equal layers, or None if the kinds of the decisions differ."""
        assert self._short is not None
        assert self.folding is not None
        layout = candidate.layout
        step = self._short._lay_out(layout.without_time)
        ((view, cluster, factors),) = step.stages
        problem = self._short._builder(candidate, view, cluster, factors, self._short._loop(layout, step), None)()
        if layout.without_time not in self._folders:
            self._folders[layout.without_time] = Folder(view, self.folding.count)
        folded = self._folders[layout.without_time].folded(problem)
        if folded is None:
            return None
        solution = good_solution(folded.problem, map(folded.merged, _few_axes(problem)), worth)
        assignment = folded.expanded(solution.assignment)
        strategy = strategy_of(problem, replace(solution, assignment=assignment), saves_memory=False)
        return Solved(candidate, step, ((strategy, folded.sums(assignment)),), is_folded=True)

    def laid_out(self, layout: Layout) -> list[tuple[StepView, Cluster]]:
        """Return the undecided step on the mesh of a layout, stage by stage; raise Refused if it has no such stages."""
        return [(view, cluster) for view, cluster, _ in self._lay_out(layout.without_time).stages]

    def tables_of(self, cluster: Cluster) -> Tables:
        """Return the tables that problems on a cluster share."""
        return self._tables.setdefault(cluster, Tables(cluster))

    def problems(self, candidate: Candidate, narrow: Narrow | None = None) -> list[tuple[StepView, StrategyProblem]]:
        """Return the problem of each stage of a candidate on its layout, with even shares and without memory prices."""
        try:
            step = self._lay_out(candidate.layout.without_time)
            loop = self._loop(candidate.layout, step)
            return [(stage[0], self._builder(candidate, *stage, loop, narrow)()) for stage in step.stages]
        except (PassFailedException, PinError) as error:
            raise Refused(str(error)) from error

    def unpacked(self, given: PackedSolved) -> Solved:
        """Return a solved candidate that another process packed."""
        bench = self._short if given.is_folded and self._short is not None else self
        step = bench._lay_out(given.candidate.layout.without_time)
        if given.ratios:
            module = step.module.clone()
            for (view, _), ratios in zip(step_views(module), given.ratios, strict=True):
                set_ratios(view.func, view.mesh, ratios)
            step = LaidOut.of(module)
        strategies = (unpacked(plan, view) for plan, (view, _, _) in zip(given.strategies, step.stages, strict=True))
        solutions = tuple(zip(strategies, given.sums, strict=True))
        return Solved(given.candidate, step, solutions, given.is_folded)

    def written(self, solved: Solved) -> ModuleOp:
        """Return the step with the strategy of a solved candidate, and with the shares by speed that suit it."""
        strategies = [strategy for strategy, _ in solved.found]
        if not solved.is_folded:
            module = solved.step.written(strategies)
            if solved.candidate.choice.balanced:
                try:
                    BalanceRatiosPass().apply(self.ctx, module)
                except PassFailedException as error:
                    raise Refused(str(error)) from error
            return module
        return self._lay_out(solved.candidate.layout.without_time).written(strategies, solved.step, self._counterparts)

    def finish(self, solved: Solved) -> Finished:
        """Return the program of a solved candidate."""
        return self._finished(solved.candidate, self.written(solved))

    def adapted(self, candidate: Candidate) -> Finished:
        """
        Return the program of a candidate of another cluster, as `finish(solve(candidate))`; but balanced shares keep
        the strategy for even shares. If layers are equal, a short step quickly decides the strategy and the shares.
        """
        choice = replace(candidate.choice, balanced=False)
        solved = self.solve(replace(candidate, choice=choice))
        module = self.written(solved)
        if not candidate.choice.balanced:
            return self._finished(candidate, module)
        try:
            if not solved.is_folded:
                BalanceRatiosPass().apply(self.ctx, module)
                return self._finished(candidate, module)
            # Equal layers have equal shares, so the shares of the short step are about as good for the whole step.
            short = solved.step.written([strategy for strategy, _ in solved.found])
            BalanceRatiosPass().apply(self.ctx, short)
        except PassFailedException as error:
            raise Refused(str(error)) from error
        for (view, _), (like, _) in zip(step_views(module), step_views(short), strict=True):
            ratios = ratios_of(like.func, like.mesh)
            set_ratios(view.func, view.mesh, ratios)
            respread(view, ratios)
        return self._finished(candidate, module)

    def _finished(self, candidate: Candidate, module: ModuleOp) -> Finished:
        """Return the program that the passes make of a module with signatures."""
        try:
            for program_pass in Pipeline.parse(candidate.layout.program.text):
                program_pass.apply(self.ctx, module)
            simulations = simulate_module(module)
            return Finished(candidate, module, time_spent(simulations), simulations[0])
        except PassFailedException as error:
            raise Refused(str(error)) from error

    def _lay_out(self, layout: Layout) -> LaidOut:
        """Return the step on the mesh of a layout, in its stages; raise Refused if layers or devices are too few."""
        if layout in self._cannot:
            raise Refused(self._cannot[layout])
        if layout not in self._laid_out:
            module = (self.fused if layout.fused else self.module).clone()
            add_cluster(module, on_mesh(self.cluster, layout.mesh))
            try:
                if layout.stages > 1:
                    partition = PartitionStagesPass(layout.stages, chunks=layout.chunks, micro_batches=layout.parts)
                    partition.apply(self.ctx, module)
                else:
                    resolve_pins(module)
            except PassFailedException as error:
                self._cannot[layout] = str(error)
                raise Refused(str(error)) from error
            self._laid_out[layout] = LaidOut.of(module)
        return self._laid_out[layout]

    def _strategies(
        self, candidate: Candidate, step: LaidOut, narrow: Narrow | None, worth: float
    ) -> list[tuple[Strategy, StrategySums]]:
        loop = self._loop(candidate.layout, step)
        builders = [self._builder(candidate, *stage, loop, narrow) for stage in step.stages]
        stages = zip(step.stages, builders, strict=True)
        fits = candidate.choice.fits
        if not fits:
            return [_strategy(build(), worth) for _, build in stages]
        most = MOST_HIDDEN * worth
        return [_strategy_that_fits(view, cluster, build, loop, most) for (view, cluster, _), build in stages]

    def _builder(
        self,
        candidate: Candidate,
        view: StepView,
        cluster: Cluster,
        factors: Factors,
        loop: BatchLoop | None,
        narrow: Narrow | None,
    ) -> Callable[..., StrategyProblem]:
        """Return a function that builds the problem of a stage for given prices of memory."""
        choice = candidate.choice
        constraints = constraints_of(view)
        if choice.pins:
            constraints = apply_pins(choice.pins, view, pin_entries(view.func)).and_also(constraints)
        if narrow is not None:
            narrow(view, constraints)
        tables = self.tables_of(cluster)
        is_shared = narrow is None and not choice.pins and not choice.balanced

        first = partial(build_problem, view, cluster, constraints, tables=tables, loop=loop, factors=factors)

        def build(prices: Prices = Prices()) -> StrategyProblem:
            if is_shared and not prices.at:
                problem = self._shared_problem(candidate, view, tables, first)
            else:
                problem = build_problem(view, cluster, constraints, choice.weights, prices, tables, loop, factors)
            self._states += sum(map(len, problem.problem.unary))
            return problem

        return build

    def _shared_problem(
        self, candidate: Candidate, view: StepView, tables: Tables, build: Callable[[Weights], StrategyProblem]
    ) -> StrategyProblem:
        """Return the problem without memory prices; problems that differ only in weights are built once."""
        key, weights = (replace(candidate.layout, chunked=False), view.stage), candidate.choice.weights
        if key not in self._problems:
            self._problems[key] = build(weights), weights
            return self._problems[key][0]
        return repriced(*self._problems[key], weights, tables)

    def _loop(self, layout: Layout, step: LaidOut) -> BatchLoop | None:
        if layout.parts == 1:
            return None
        in_flight = layout.parts if layout.mode == "duplex" else min(layout.stages * layout.chunks, layout.parts)
        batch = Batch(self.rows, AXIS, layout.parts, unrolled=layout.mode == "duplex")
        return step.loop(batch, in_flight, per_part=layout.per_part)


def _strategy_that_fits(
    view: StepView, cluster: Cluster, build: Callable[..., StrategyProblem], loop: BatchLoop | None, worth: float
) -> tuple[Strategy, StrategySums]:
    within = solve_within(view, cluster, build, _found, (1.0 - HEADROOM) * cluster.memory, loop, worth)
    return within.strategy, within.problem.sums(within.solution.assignment)


def _strategy(problem: StrategyProblem, worth: float) -> tuple[Strategy, StrategySums]:
    solution = good_solution(problem.problem, _few_axes(problem), worth)
    return strategy_of(problem, solution, saves_memory=False), problem.sums(solution.assignment)


def _few_axes(problem: StrategyProblem) -> Iterator[list[States]]:
    """Yield the states that use no axis, then for each of several axes the states that use no other axis."""
    yield problem.states_within(set())
    yield from (problem.states_within({axis}) for axis in sorted(problem.spatial) if len(problem.spatial) > 1)


def good_solution(problem: Problem, parts: Iterable[Sequence[States]] = (), worth: float = inf) -> Solution:
    """
    Return a nearly optimal solution; raise Infeasible if the problem has none.

    Args:
        parts: parts of the problem, each with some states of every node; if the optimum may be far, the optimum of each
            part is searched too.
        worth: seconds of a step that is known; if every solution costs more, a quickly found one is enough.
    """
    allowance = _GOOD_ENOUGH * sum(float(costs.min()) for costs in problem.unary)
    quick = solve(problem, limits=replace(LIMITS, allowance=allowance))
    if quick.lower_bound >= worth or not _may_be_far(quick, allowance):
        return quick
    solution = _improved_by_parts(problem, quick, parts)
    return solution if solution.cost - solution.lower_bound <= allowance else _improved(problem, solution, allowance)


def _found(problem: StrategyProblem, allowance: float, known: Solution | None) -> Solution:
    """Return a quickly found solution, or one that a thorough search finds from a known one."""
    if known is not None:
        is_optimal = known.cost - known.lower_bound <= allowance
        return known if is_optimal else _improved(problem.problem, known, allowance)
    quick = solve(problem.problem, limits=replace(LIMITS, allowance=allowance))
    return _improved_by_parts(problem.problem, quick, _few_axes(problem)) if _may_be_far(quick, allowance) else quick


def _may_be_far(found: Solution, allowance: float) -> bool:
    """Return whether the optimum may cost far less than a solution that was found quickly."""
    return found.cost - found.lower_bound > max(_FAR * found.cost, allowance)


def _improved_by_parts(problem: Problem, quick: Solution, parts: Iterable[Sequence[States]]) -> Solution:
    """Return the best combination of a solution with the optima of some parts of the problem."""
    known = [quick.assignment]
    for among in parts:
        with suppress(LimitReached):
            known.append(solve(problem, limits=LIMITS, among=among).assignment)
    together = combined(problem, known, LIMITS)
    return replace(quick, assignment=together, cost=problem.cost(together))


def _improved(problem: Problem, known: Solution, allowance: float) -> Solution:
    """Return the solution of a thorough search that starts from a known one."""
    thorough = solve(problem, limits=replace(THOROUGH, allowance=allowance), known=known.assignment)
    if thorough.cost >= known.cost:
        return thorough
    assignment = combined(problem, [known.assignment, thorough.assignment], LIMITS)
    return replace(thorough, assignment=assignment, cost=problem.cost(assignment))
