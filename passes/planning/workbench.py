"""Making candidates: a strategy on a layout, the program that the passes make of it, and what that comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination
from xdsl.transforms.dead_code_elimination import DeadCodeElimination
from xdsl.utils.exceptions import PassFailedException

from ...dialects import train
from ...dialects.compute import ComputeOp, shape_of
from ...dialects.ratios import ratios_of, set_ratios
from ...ir.cluster import Cluster
from ...ir.mesh import Mesh
from ...ir.op_cost import op_seconds
from ...ir.ratios import Ratios
from ...ir.signatures import Choice
from ...ir.submesh import on_mesh
from ..accumulate import AccumulatePass
from ..add_cluster import add_cluster
from ..analysis.compute import op_work
from ..analysis.factors import Factors
from ..analysis.memory import peak_memory
from ..analysis.simulation.results import Simulation
from ..analysis.simulation.simulate import simulate_module
from ..analysis.stage_costs import whole_signature
from ..balance_ratios import BalanceRatiosPass
from ..decompose_batch_norm import DecomposeBatchNormPass
from ..duplex import DuplexPass
from ..insert_resharding import InsertReshardingPass
from ..overlap import OverlapPass
from ..partition_stages import PartitionStagesPass
from ..pipeline import run_passes
from ..plan_transfers import PlanTransfersPass
from ..schedule_pipeline import SchedulePipelinePass
from ..search.decided import (
    Counterparts,
    PackedStrategy,
    packed,
    strategy_of,
    transferred,
    unpacked,
    write_strategy,
)
from ..search.eliminate import LimitReached, Limits, solve
from ..search.memory import Prices, Strategy
from ..search.objective import Loop, Weights
from ..search.pins import Constraints, Pin, PinError, apply_pins
from ..search.problem import Infeasible, Problem, Solution
from ..search.shared_tables import Tables
from ..search.step_view import StepView, mesh_of_module, step_functions, step_views
from ..search.strategy import StrategyProblem, Sums, build_problem, repriced
from ..search.within_memory import solve_within
from ..search_strategy import HEADROOM
from ..select_collectives import SelectCollectivesPass
from ..split_batch import SplitBatchPass
from ..time.batch_parts import Batch, find_parts
from .candidates import Candidate, Layout
from .fold import Folder, Folding
from .fold import folding as folding_of

BATCH_NORMS = ("aten._native_batch_norm_legit_functional", "aten.native_batch_norm_backward")

AXIS = "micro"
"""The temporal axis along which a batch is cut."""

LIMITS = Limits(entries=500_000, cheap_work=2_000_000, work=10_000_000, sweeps=(12, 6, 6, 6), branches=1)
"""What solving one candidate may take: candidates need be good, and bounds are found apart."""


_GOOD_ENOUGH = 0.03
"""How far, relative to its compute at best, the strategy of a candidate may be from the optimum of its problem."""


Narrow = Callable[[StepView, Constraints], None]
"""Changes the constraints of one stage, besides what pins say: to fix one decision, say, or to leave it open."""


class Refused(ValueError):
    """A candidate that cannot be: the message says why."""


@dataclass(frozen=True)
class Ground:
    """
    A step on a mesh, in its stages, if it has any, without a strategy.

    Args:
        stages: with the cluster of each, and how dims are divided there.
    """

    module: ModuleOp
    stages: tuple[tuple[StepView, Cluster, Factors], ...]
    loops: dict[Batch, Loop] = field(default_factory=dict[Batch, Loop], init=False, repr=False, compare=False)

    def loop(self, batch: Batch) -> Loop | None:
        """How the step goes through the parts of a batch; None where it has no ops."""
        if not self.stages:
            return None
        if batch not in self.loops:
            whole = self.stages[0][0].whole
            found = find_parts(list(whole.func.body.block.ops), whole.inputs, batch)
            self.loops[batch] = Loop(batch.parts, found)
        return self.loops[batch]

    @staticmethod
    def of(module: ModuleOp) -> Ground:
        """The ground that a module is."""
        views = step_views(module)
        return Ground(module, tuple((v, c, Factors(v, ratios_of(v.func, v.mesh))) for v, c in views))

    def written(
        self, strategies: Sequence[Strategy], source: Ground | None = None, counterparts: Counterparts | None = None
    ) -> ModuleOp:
        """
        A copy of the module with the strategies of its stages.

        Args:
            source: of whose ops and values the strategies are: this one's, or those of a step with `counterparts`.
        """
        module = self.module.clone()
        stages = (source or self).stages
        for (view, _), (of, _, _), strategy in zip(step_views(module), stages, strategies, strict=True):
            write_strategy(view, transferred(strategy, of, view, counterparts))
        return module


@dataclass(frozen=True)
class Solved:
    """
    A candidate with its strategy.

    Args:
        ground: whose ops and values the strategies speak of: the step on the candidate's layout, or, where `is_folded`,
            the short step that represents it.
        found: by stage, the strategy and what it comes to for the whole step.
    """

    candidate: Candidate
    ground: Ground
    found: tuple[tuple[Strategy, Sums], ...]
    is_folded: bool = False

    @property
    def sums(self) -> tuple[Sums, ...]:
        """By stage, what the strategy comes to."""
        return tuple(sums for _, sums in self.found)

    @property
    def size(self) -> int:
        """The ops of the problem that was solved."""
        return sum(len(view.ops) for view, _, _ in self.ground.stages)

    def packed(self) -> PackedSolved:
        """The same for another process, that unpacks it on a workbench of the same step."""
        stages = self.ground.stages
        strategies = (packed(strategy, view) for (strategy, _), (view, _, _) in zip(self.found, stages, strict=True))
        ratios = tuple(ratios_of(view.func, view.mesh) for view, _, _ in stages)
        balanced = ratios if self.candidate.choice.balanced else ()
        return PackedSolved(self.candidate, tuple(strategies), self.sums, balanced, self.is_folded)

    @cached_property
    def fingerprint(self) -> object:
        """Equal for equal strategies on one layout."""
        decided = (
            (tuple(s.ops.values()), tuple(s.homes.values()), tuple(s.copies.values())) for s, _ in self.found
        )
        return self.candidate.layout, self.candidate.choice.balanced, hash(tuple(decided))

    @property
    def hopeful_seconds(self) -> float:
        """About the least that the step can take: much of what blocks may be hidden, and all that need not."""
        stages = [
            max(each.compute + _BLOCKING_AT_BEST * each.blocking, _IN_A_ROW * each.beside) for each in self.sums
        ]
        rest = (sum(stages) - max(stages)) / self.candidate.layout.parts
        return max(stages) + _BUBBLE_AT_BEST * rest


@dataclass(frozen=True)
class PackedSolved:
    """
    A solved candidate that another process can read.

    Args:
        strategies: by stage.
        ratios: by stage, the shares of devices by segment, where they are not even.
    """

    candidate: Candidate
    strategies: tuple[PackedStrategy, ...]
    sums: tuple[Sums, ...]
    ratios: tuple[dict[int, Ratios], ...]
    is_folded: bool


_BLOCKING_AT_BEST = 0.6
"""The part of blocking collectives that counts in a hopeful estimate."""

_IN_A_ROW = 0.7
"""The part of collectives beside compute that goes one after the other: over several axes some run at once."""

_BUBBLE_AT_BEST = 0.8
"""The part of a pipeline's filling and draining that counts in a hopeful estimate: weights' gradients may fill it."""


@dataclass(frozen=True)
class Finished:
    """
    A candidate as a program.

    Args:
        seconds: of the simulated step.
        compute, exposed: seconds in which the stage that computes longest works, and does not.
    """

    candidate: Candidate
    module: ModuleOp = field(repr=False)
    seconds: float
    compute: float
    exposed: float
    simulation: Simulation = field(repr=False)

    @cached_property
    def tightest(self) -> tuple[int, float]:
        """The peak of the rank that comes closest to its memory, or exceeds it by most, and that memory, in bytes."""
        found: list[tuple[int, float]] = []
        for view, cluster in step_views(self.module):
            limits = [cluster.device(rank).memory for rank in range(cluster.mesh.device_count)]
            peak = peak_memory(view.func, cluster.mesh, limits, view.stage, cluster.blocks)
            found.append((peak.bytes, limits[peak.rank]))
        return max(found, key=lambda each: each[0] - each[1])

    @property
    def fits(self) -> bool:
        """Whether every rank has the memory that it needs."""
        peak, memory = self.tightest
        return peak <= memory


class Workbench:
    """
    Makes candidates of one step on one cluster.

    Args:
        module: with the cluster, and without decisions.
        pins: what every candidate must obey.
        folding: that of a longer step, whose strategies shall be made programs of this one; by default its own.
    """

    def __init__(
        self, module: ModuleOp, cluster: Cluster, pins: Sequence[Pin] = (), folding: Folding | None = None
    ) -> None:
        self.fused, self.cluster, self.pins = module, cluster, tuple(pins)
        self.ctx = Context()
        self.has_batch_norm = any(op.name in BATCH_NORMS for op in module.walk())
        self.module = module.clone()
        if self.has_batch_norm:
            run_passes(self.ctx, self.module, _decompositions(), verify_each=False)
        self.views = [StepView(func, mesh_of_module(module)) for func in step_functions(self.module)]
        self.size = sum(len(view.ops) for view in self.views)
        # Pins may tell equal layers from one another.
        self.folding = folding or (None if self.pins else folding_of(self.module))
        self._grounds: dict[Layout, Ground] = {}
        self._folders: dict[Layout, Folder] = {}
        self._cuts: dict[bool, Mapping[ComputeOp, Choice] | str] = {}
        self._tables: dict[Cluster, Tables] = {}
        self._cannot: dict[Layout, str] = {}
        self._problems: dict[tuple[Layout, int | None], tuple[StrategyProblem, Weights]] = {}

    @property
    def rows(self) -> int:
        """The rows of the batch; 1 where it has no dim to cut."""
        shapes = (shape_of(i.argument) for view in self.views for i in view.inputs if i.role == train.BATCH)
        return next((shape[0] for shape in shapes if shape), 1)

    @property
    def own_mesh(self) -> Mesh:
        """The mesh of the cluster, as it was given."""
        return self.views[0].mesh

    def least_seconds(self, layout: Layout) -> float:
        """
        The least that a step of a layout computes for: every op in as many parts as there are devices of a stage, and
        what a pipeline needs to fill and to drain.
        """
        devices = [self.cluster.device(rank) for rank in range(self.cluster.mesh.device_count)]
        kinds = {device: devices.count(device) for device in devices}
        shares = layout.parts * len(devices) / layout.stages
        cut = self._cut(unrolled=layout.mode == "duplex")
        choices: Mapping[ComputeOp, Choice] = dict[ComputeOp, Choice]() if isinstance(cut, str) else cut
        total, known = 0.0, dict[object, float]()
        for view in self.views:
            for op in view.ops:
                turns = layout.parts if choices.get(op) is not None else 1
                key = (op.use_key(), turns)
                if key not in known:
                    work = op_work(op, whole_signature(op), Mesh(()), keyed=False)
                    part = shares if turns > 1 else shares / layout.parts
                    part_work = replace(work, flops=work.flops / part, bytes=work.bytes / part)
                    speed = sum(count / max(op_seconds(each, part_work), 1e-12) for each, count in kinds.items())
                    known[key] = turns * len(devices) / speed
                total += known[key]
        stage = total / layout.stages
        return stage * (1.0 + _BUBBLE_AT_BEST * (layout.stages - 1) / layout.parts)

    def cut_refusal(self, *, unrolled: bool = False) -> str | None:
        """Why the batch cannot be cut into parts; None where it can."""
        cut = self._cut(unrolled=unrolled)
        return cut if isinstance(cut, str) else None

    def _cut(self, *, unrolled: bool) -> Mapping[ComputeOp, Choice] | str:
        """What two parts of the batch make of each op, which is about what more of them do; or why there are none."""
        if unrolled not in self._cuts:
            found: dict[ComputeOp, Choice] = {}
            try:
                for view in self.views:
                    batch = Batch(self.rows, AXIS, 2, unrolled)
                    found |= find_parts(list(view.func.body.block.ops), view.inputs, batch).choices
                self._cuts[unrolled] = found
            except PassFailedException as error:
                self._cuts[unrolled] = str(error)
        return self._cuts[unrolled]

    @cached_property
    def _short(self) -> Workbench | None:
        """Where problems of the short step that represents this one are made."""
        if self.folding is None:
            return None
        made = Workbench(self.folding.module, self.cluster)
        made._tables = self._tables
        return made

    @cached_property
    def _counterparts(self) -> Counterparts | None:
        return self.folding.counterparts(self.module) if self.folding is not None else None

    def is_folded(self, candidate: Candidate) -> bool:
        """Whether equal layers decide alike in the strategy of a candidate, which makes it quick to find."""
        layout, choice = candidate.layout, candidate.choice
        plain = not (layout.fused or choice.balanced or choice.fits)
        return plain and layout.stages == 1 and self._counterparts is not None

    def solve(self, candidate: Candidate, narrow: Narrow | None = None) -> Solved:
        """Find the strategy of a candidate; Refused where there is none."""
        try:
            if narrow is None and self.is_folded(candidate) and (solved := self._folded(candidate)) is not None:
                return solved
            ground = self._ground(candidate.layout.without_time)
            if candidate.choice.balanced:
                ground = self._balanced(candidate, ground, narrow)
            found = self._strategies(candidate, ground, narrow)
        except (PassFailedException, PinError, Infeasible, LimitReached) as error:
            raise Refused(str(error)) from error
        return Solved(candidate, ground, tuple(found))

    def _folded(self, candidate: Candidate) -> Solved | None:
        """The strategy of a candidate in which equal layers decide alike; None where their decisions differ in kind."""
        assert self._short is not None
        assert self.folding is not None
        layout = candidate.layout
        ground = self._short._ground(layout.without_time)
        ((view, cluster, factors),) = ground.stages
        given = self._short._builder(candidate, view, cluster, factors, self._short._loop(layout, ground), None)()
        if layout.without_time not in self._folders:
            self._folders[layout.without_time] = Folder(view, self.folding.count)
        folded = self._folders[layout.without_time].folded(given)
        if folded is None:
            return None
        solution = good_solution(folded.problem)
        assignment = folded.expanded(solution.assignment)
        strategy = strategy_of(given, replace(solution, assignment=assignment), is_frugal=False)
        return Solved(candidate, ground, ((strategy, folded.sums(assignment)),), is_folded=True)

    def laid_out(self, layout: Layout) -> list[tuple[StepView, Cluster]]:
        """The step on the mesh of a layout, stage by stage, without decisions; Refused where it has no such stages."""
        return [(view, cluster) for view, cluster, _ in self._ground(layout.without_time).stages]

    def tables_of(self, cluster: Cluster) -> Tables:
        """What problems on a cluster share."""
        return self._tables.setdefault(cluster, Tables(cluster))

    def views_of(self, layout: Layout) -> list[StepView]:
        """The stages of the step on a layout, without decisions; Refused where it cannot be laid out so."""
        return [view for view, _, _ in self._ground(layout.without_time).stages]

    def problems(self, candidate: Candidate, narrow: Narrow | None = None) -> list[tuple[StepView, StrategyProblem]]:
        """The problem of each stage of a candidate, on `views_of` its layout, with even shares; memory is free."""
        try:
            ground = self._ground(candidate.layout.without_time)
            loop = self._loop(candidate.layout, ground)
            return [(stage[0], self._builder(candidate, *stage, loop, narrow)()) for stage in ground.stages]
        except (PassFailedException, PinError) as error:
            raise Refused(str(error)) from error

    def unpacked(self, given: PackedSolved) -> Solved:
        """What was solved and packed on such a workbench in another process."""
        bench = self._short if given.is_folded and self._short is not None else self
        ground = bench._ground(given.candidate.layout.without_time)
        if given.ratios:
            module = ground.module.clone()
            for (view, _), ratios in zip(step_views(module), given.ratios, strict=True):
                set_ratios(view.func, view.mesh, ratios)
            ground = Ground.of(module)
        strategies = (unpacked(each, view) for each, (view, _, _) in zip(given.strategies, ground.stages, strict=True))
        found = tuple(zip(strategies, given.sums, strict=True))
        return Solved(given.candidate, ground, found, given.is_folded)

    def written(self, solved: Solved) -> ModuleOp:
        """The step with the strategy of a solved candidate."""
        strategies = [strategy for strategy, _ in solved.found]
        if not solved.is_folded:
            return solved.ground.written(strategies)
        return self._ground(solved.candidate.layout.without_time).written(strategies, solved.ground, self._counterparts)

    def finish(self, solved: Solved) -> list[Finished]:
        """The programs of a solved candidate, one of each schedule."""
        layout = solved.candidate.layout
        module = self.written(solved)
        try:
            for each in _shared_passes(layout):
                each.apply(self.ctx, module)
            return [self._judged(solved.candidate, variant, made) for variant, made in self._variants(layout, module)]
        except PassFailedException as error:
            raise Refused(str(error)) from error

    def _variants(self, layout: Layout, module: ModuleOp) -> Iterator[tuple[Layout, ModuleOp]]:
        if layout.mode != "pipeline":
            yield layout, module
            return
        schedules = (layout.schedule,) if layout.schedule is not None else ("1f1b", "eager-1f1b", "gpipe")
        for schedule in schedules:
            made = module.clone()
            for each in (SchedulePipelinePass(schedule), PlanTransfersPass()):
                each.apply(self.ctx, made)
            yield replace(layout, schedule=schedule), made

    def _judged(self, candidate: Candidate, layout: Layout, module: ModuleOp) -> Finished:
        simulations = simulate_module(module)
        busiest = [
            max((simulation.compute_seconds(each.number), each.number) for each in simulation.classes)
            for simulation in simulations
        ]
        seconds, compute = sum(each.seconds for each in simulations), sum(each for each, _ in busiest)
        return Finished(replace(candidate, layout=layout), module, seconds, compute, seconds - compute, simulations[0])

    def _ground(self, layout: Layout) -> Ground:
        """The step on the mesh of a layout, in its stages; Refused where it has fewer layers, or no such sub-meshes."""
        if layout in self._cannot:
            raise Refused(self._cannot[layout])
        if layout not in self._grounds:
            module = (self.fused if layout.fused else self.module).clone()
            add_cluster(module, on_mesh(self.cluster, layout.mesh))
            if layout.stages > 1:
                try:
                    PartitionStagesPass(layout.stages, micro_batches=4 * layout.stages).apply(self.ctx, module)
                except PassFailedException as error:
                    self._cannot[layout] = str(error)
                    raise Refused(str(error)) from error
            self._grounds[layout] = Ground.of(module)
        return self._grounds[layout]

    def _balanced(self, candidate: Candidate, ground: Ground, narrow: Narrow | None) -> Ground:
        """The step with the shares that are best for the strategy that is best with equal ones."""
        module = ground.written([strategy for strategy, _ in self._strategies(candidate, ground, narrow)])
        BalanceRatiosPass().apply(self.ctx, module)
        return Ground.of(module)

    def _strategies(
        self, candidate: Candidate, ground: Ground, narrow: Narrow | None
    ) -> list[tuple[Strategy, Sums]]:
        loop = self._loop(candidate.layout, ground)
        builders = [self._builder(candidate, *stage, loop, narrow) for stage in ground.stages]
        stages = zip(ground.stages, builders, strict=True)
        return [_strategy(view, cluster, build, fits=candidate.choice.fits) for (view, cluster, _), build in stages]

    def _builder(
        self,
        candidate: Candidate,
        view: StepView,
        cluster: Cluster,
        factors: Factors,
        loop: Loop | None,
        narrow: Narrow | None,
    ) -> Callable[..., StrategyProblem]:
        """What makes the problem of a stage, at prices of memory."""
        choice = candidate.choice
        constraints = apply_pins((*choice.pins, *self.pins), view)
        if narrow is not None:
            narrow(view, constraints)
        tables = self.tables_of(cluster)
        is_shared = narrow is None and not choice.pins and not choice.balanced

        first = partial(build_problem, view, cluster, constraints, tables=tables, loop=loop, factors=factors)

        def build(prices: Prices = Prices()) -> StrategyProblem:
            if is_shared and not prices.at:
                return self._shared_problem(candidate, view, tables, first)
            return build_problem(view, cluster, constraints, choice.weights, prices, tables, loop, factors)

        return build

    def _shared_problem(
        self, candidate: Candidate, view: StepView, tables: Tables, build: Callable[[Weights], StrategyProblem]
    ) -> StrategyProblem:
        """The problem of a candidate where memory is free; those that differ in weights alone are built once."""
        key, weights = (candidate.layout, view.stage), candidate.choice.weights
        if key not in self._problems:
            self._problems[key] = build(weights), weights
            return self._problems[key][0]
        return repriced(*self._problems[key], weights, tables)

    def _loop(self, layout: Layout, ground: Ground) -> Loop | None:
        if layout.parts == 1:
            return None
        return ground.loop(Batch(self.rows, AXIS, layout.parts, unrolled=layout.mode == "duplex"))


def _strategy(
    view: StepView, cluster: Cluster, build: Callable[..., StrategyProblem], *, fits: bool
) -> tuple[Strategy, Sums]:
    """The strategy of a stage, and what it comes to."""
    if fits:
        found = solve_within(view, cluster, build, _solved, (1.0 - HEADROOM) * cluster.memory)
        return found.strategy, found.problem.sums(found.solution.assignment)
    problem = build()
    solution = good_solution(problem.problem)
    return strategy_of(problem, solution, is_frugal=False), problem.sums(solution.assignment)


def good_solution(problem: Problem) -> Solution:
    """A solution about as good as the best; Infeasible where there is none."""
    least = sum(float(costs.min()) for costs in problem.unary)
    return solve(problem, limits=replace(LIMITS, allowance=_GOOD_ENOUGH * least))


def _solved(problem: StrategyProblem, allowance: float) -> Solution:
    return solve(problem.problem, limits=replace(LIMITS, allowance=allowance))


def _decompositions() -> list[ModulePass]:
    """What writes batch-norms as sums over the batch, so that it can be split."""
    return [DecomposeBatchNormPass(), CanonicalizePass(), CommonSubexpressionElimination(), DeadCodeElimination()]


def _shared_passes(layout: Layout) -> Iterator[ModulePass]:
    """The passes that make a program of a strategy, up to the schedule of a pipeline."""
    if layout.parts > 1:
        yield SplitBatchPass(layout.parts, AXIS, unrolled=layout.mode == "duplex")
    yield from (InsertReshardingPass(), SelectCollectivesPass())
    if layout.mode == "accumulate":
        yield AccumulatePass()
    elif layout.mode == "duplex":
        yield DuplexPass()
    yield OverlapPass()
