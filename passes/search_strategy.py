"""Search for the signatures of all ops that minimise the predicted step time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ..dialects.step import (
    MEMORY_BUDGET,
    MEMORY_SAVING,
    SEARCH,
)
from .add_pins import AddPinsPass
from .search.algorithms.interface import Effort
from .search.algorithms.run import search_within
from .search.algorithms.table import AlgorithmName
from .search.constraints import constraints_of
from .search.objective import COMPLETION, Weights
from .search.within_memory import HEADROOM, ConstrainedSolution
from .step.step_view import step_functions, step_views
from .strip_resharding import strip_resharding

WholePlan = Literal["auto", "anneal"]
"""The algorithms of `search-plan`."""


@dataclass(frozen=True)
class SearchStrategyPass(ModulePass):
    """
    Give every op a signature and every argument a home, with the least predicted step time.

    Requires: a `spmd.mesh` and a `spmd.cluster`. Reshardings and collectives of an earlier run are stripped first. Pins
    (`add-pins`) are obeyed, and stay.
    Ensures: every compute op has a `spmd.signature`, every argument a `spmd.sharding`; a value with several users may
    have a `spmd.working` placement. The function's `spmd.search` has the cost and its lower bound, in seconds. If
    memory is short, the function is in memory-saving mode (`spmd.memory_saving`).

    Before:
    ```mlir
    #cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    func.func @step(
      %x: tensor<64x32xf32> {train.batch = "0"}, %w: tensor<32x16xf32> {train.param = "w"}
    ) -> tensor<64x16xf32> {
      %y = aten.mm %x, %w : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
      func.return %y : tensor<64x16xf32>
    }
    ```

    After:
    ```mlir
    #cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = 1.0e-6, beta = 1.0e-9>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    #rows = #spmd.sharding<@mesh, [{"gpu"}, {}]>
    #whole = #spmd.sharding<@mesh, [{}, {}]>
    func.func @step(
      %x: tensor<64x32xf32> {train.batch = "0", spmd.sharding = #rows},
      %w: tensor<32x16xf32> {train.param = "w", spmd.sharding = #whole}
    ) -> tensor<64x16xf32> attributes {spmd.search = {
      algorithm = "eliminate", cost = 3.2768e-05, lower_bound = 3.2768e-05, peak_bytes = 8192 : i64
    }} {
      %y = aten.mm %x, %w {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>}
        : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
      func.return %y : tensor<64x16xf32>
    }
    ```

    Source: bucket elimination (Dechter 1999) and branch and bound, see `passes/search/eliminate.py`; HiDup 4
    (`pareto-dp`); HAP 4.3 to 4.5 (`astar`); AutoDDL 4.5 and 4.6 (`random`, `metropolis`, `coordinate-descent`).
    """

    name = "search-strategy"

    algorithm: AlgorithmName | WholePlan = "eliminate"
    """
    `eliminate` is exact for the additive cost; `fixed` completes pins with the least communication; `exhaustive` tries
    all strategies; `ilp` is an integer program, exact or with a gap; `pareto-dp` minimises the time of two interleaved
    micro-batches (HiDup); `astar` synthesises a program instruction by instruction (HAP); `random`, `metropolis` and
    `coordinate-descent` are heuristics without a bound (AutoDDL). `auto` and `anneal` are the algorithms of
    `search-plan`, which decides on the whole plan and writes a program with collectives.
    """

    pins: str | None = None
    """Pins to add first, as `add-pins` does."""

    memory: int | float | None = None
    """Bytes per device that a plan may use; by default nine tenths of the memory of the cluster's smallest device,
    because the buffers of collectives are decided later; never more than the memory budget of `fit-memory`
    (`spmd.memory_budget`)."""

    parameters: int | float = 1.0
    """Weight of the seconds of gathers of parameters and reductions of gradients, which overlap with computation."""

    activations: int | float = 1.0
    """Weight of the seconds of all other collectives."""

    seed: int = 0
    """Seed of the random choices of an algorithm."""

    budget: int | None = None
    """Number of steps after which an algorithm returns its best strategy so far; by default the algorithm's own."""

    without: str | None = None
    """Parts of an algorithm to switch off, separated by commas, to measure their effect."""

    explain: bool = False
    """Whether `spmd.search` also has the statistics of the search: how many states it visited, and each rule pruned."""

    @property
    def _weights(self) -> Weights:
        if self.algorithm == "fixed":
            return COMPLETION
        return Weights(parameters=float(self.parameters), activations=float(self.activations))

    @property
    def _effort(self) -> Effort:
        return Effort(
            self.seed, self.budget, frozenset(map(str.strip, self.without.split(","))) if self.without else frozenset()
        )

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        if self.algorithm == "auto" or self.algorithm == "anneal":
            self._search_plan(ctx, op, self.algorithm)
            return
        strip_resharding(op)
        if self.pins is not None:
            AddPinsPass(self.pins).apply(ctx, op)
        for func in step_functions(op):
            func.attributes.pop(MEMORY_SAVING, None)
        solutions: dict[FuncOp, list[ConstrainedSolution]] = {}
        for view, cluster in step_views(op):
            budget = (1.0 - HEADROOM) * cluster.memory if self.memory is None else self.memory
            left = view.func.attributes.get(MEMORY_BUDGET)
            room = min(budget, left.value.data) if isinstance(left, FloatAttr) else budget
            constraints = constraints_of(view)
            stage = search_within(view, cluster, constraints, room, self.algorithm, self._weights, self._effort)
            solutions.setdefault(view.func, []).append(stage)
        for func, stages in solutions.items():
            func.attributes[SEARCH] = self._summary(stages)

    def _search_plan(self, ctx: Context, op: ModuleOp, algorithm: WholePlan) -> None:
        """Run `search-plan`, which does not take the options of an objective."""
        from .search_plan import SearchPlanPass

        usual = SearchStrategyPass()
        for name in ("memory", "parameters", "activations", "without", "explain"):
            if getattr(self, name) != getattr(usual, name):
                raise PassFailedException(f"algorithm={algorithm} decides on whole plans; leave out {name}")
        if self.pins is not None:
            AddPinsPass(self.pins).apply(ctx, op)
        SearchPlanPass(algorithm=algorithm, seed=self.seed, iterations=self.budget).apply(ctx, op)

    def _summary(self, stages: Sequence[ConstrainedSolution]) -> DictionaryAttr:
        """Return the result of all stages: their seconds together, the largest peak, and the statistics if asked."""
        entries: dict[str, Attribute] = {
            "algorithm": StringAttr(self.algorithm),
            "cost": FloatAttr(sum(solution.cost for solution in stages), 64),
            "lower_bound": FloatAttr(sum(solution.lower_bound for solution in stages), 64),
            "peak_bytes": IntegerAttr(int(max(solution.peak_bytes for solution in stages)), i64),
        }
        if self.explain:
            counts = Counter[str]()
            for solution in stages:
                # Seconds are left out because they differ between runs, and the IR must not.
                counts.update({name: n for name, n in solution.solution.statistics.items() if isinstance(n, int)})
            entries["statistics"] = DictionaryAttr({name: IntegerAttr(n, i64) for name, n in sorted(counts.items())})
        return DictionaryAttr(entries)
