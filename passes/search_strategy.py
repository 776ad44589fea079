"""The pass `search-strategy`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ..dialects.compute import ComputeOp
from ..dialects.step import (
    MEMORY_BUDGET,
    MEMORY_SAVING,
    SEARCH,
)
from ..ir.cluster import Cluster
from .add_pins import AddPinsPass
from .search.constraints import Constraints, constraints_of
from .search.decided import write_strategy
from .search.objective import COMPLETION, Weights
from .search.problem import Infeasible, Solution, TooManyError, brute_force
from .search.strategy import build_problem
from .search.strategy_problem import StrategyProblem
from .search.within_memory import Found, solve_within
from .step.step_view import StepView, step_functions, step_views, value_label
from .strip_resharding import strip_resharding

Algorithm = Literal["eliminate", "fixed", "exhaustive"]

HEADROOM = 0.1
"""The part of a device's memory that the search leaves to the buffers of collectives."""

_BRANCHES = 20
"""How much the search may try out at each price of memory, where bounds alone do not decide."""


@dataclass(frozen=True)
class SearchStrategyPass(ModulePass):
    """
    Give every op a signature and every argument a home, at the least predicted time of a step.

    Requires: a `spmd.mesh` and a `spmd.cluster`. Reshardings and collectives of an earlier run are stripped
    first. What is pinned (`add-pins`) is obeyed, and stays.
    Ensures: every compute op has a `spmd.signature`, every argument a `spmd.sharding`; a value with several
    users may have a `spmd.working` placement; the function's `spmd.search` has the cost and a lower bound of
    it, in seconds. Where memory is short, the function is in memory-saving mode (`spmd.memory_saving`).

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

    Source: bucket elimination (Dechter 1999) and branch and bound, as `passes/search/eliminate.py` says. HiDup 4, HAP 4
    and AutoDDL 4 search the same space by other algorithms, which are not implemented here.
    """

    name = "search-strategy"

    algorithm: Algorithm = "eliminate"
    """
    `eliminate` is exact for the additive cost; `fixed` completes pins with the least communication;
    `exhaustive` tries everything.
    """

    pins: str | None = None
    """Pins to add first, as by `add-pins`."""

    memory: int | float | None = None
    """Bytes per device that a plan may use; by default what the cluster's smallest device has, less a tenth for the
    buffers of collectives, which are decided later; never more than the memory budget set by `fit-memory`
    (`spmd.memory_budget`)."""

    parameters: int | float = 1.0
    """The weight of the seconds of gathers of parameters and reductions of gradients, which run beside compute."""

    activations: int | float = 1.0
    """The weight of the seconds of all other collectives."""

    @property
    def _weights(self) -> Weights:
        return Weights(parameters=float(self.parameters), activations=float(self.activations))

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        strip_resharding(op)
        if self.pins is not None:
            AddPinsPass(self.pins).apply(ctx, op)
        for func in step_functions(op):
            func.attributes.pop(MEMORY_SAVING, None)
        found: dict[FuncOp, list[Found]] = {}
        for view, cluster in step_views(op):
            stage = search(view, cluster, self.algorithm, self.memory, self._weights)
            found.setdefault(view.func, []).append(stage)
        for func, stages in found.items():
            func.attributes[SEARCH] = self._summary(stages)

    def _summary(self, stages: Sequence[Found]) -> DictionaryAttr:
        """What was found: the stages' seconds together, and the largest peak."""
        return DictionaryAttr(
            {
                "algorithm": StringAttr(self.algorithm),
                "cost": FloatAttr(sum(found.cost for found in stages), 64),
                "lower_bound": FloatAttr(sum(found.lower_bound for found in stages), 64),
                "peak_bytes": IntegerAttr(int(max(found.peak_bytes for found in stages)), i64),
            }
        )


def search(
    view: StepView,
    cluster: Cluster,
    algorithm: Algorithm,
    memory: float | None = None,
    weights: Weights = Weights(),
) -> Found:
    """Search one step function, or one stage of it, and write what was found; see `SearchStrategyPass`."""
    constraints = constraints_of(view)
    weights = COMPLETION if algorithm == "fixed" else weights
    return search_within(view, cluster, constraints, _room(view.func, cluster, memory), algorithm, weights)


def search_within(
    view: StepView,
    cluster: Cluster,
    constraints: Constraints,
    budget: float,
    algorithm: Algorithm = "eliminate",
    weights: Weights = Weights(),
) -> Found:
    """Search one step function, or one stage of it, within `budget` bytes per device, and write what was found."""
    found = solve_within(
        view,
        cluster,
        lambda prices: build_problem(view, cluster, constraints, weights, prices),
        lambda problem, allowance: _solved(problem, constraints, algorithm, allowance),
        budget,
    )
    write_strategy(view, found.strategy)
    return found


def _room(func: FuncOp, cluster: Cluster, memory: float | None) -> float:
    """The bytes per device that a plan may use."""
    budget = (1.0 - HEADROOM) * cluster.memory if memory is None else memory
    left = func.attributes.get(MEMORY_BUDGET)
    return min(budget, left.value.data) if isinstance(left, FloatAttr) else budget


def _solved(problem: StrategyProblem, constraints: Constraints, algorithm: Algorithm, allowance: float) -> Solution:
    from .search.eliminate import Limits, solve

    limits = Limits(allowance=allowance, branches=_BRANCHES) if allowance else Limits()
    try:
        return brute_force(problem.problem) if algorithm == "exhaustive" else solve(problem.problem, limits=limits)
    except TooManyError as error:
        raise PassFailedException(f"{error}; use another algorithm, as algorithm=eliminate") from error
    except Infeasible as error:
        subjects = [problem.decisions[node].subject for node in error.nodes[:4]]
        names = ", ".join(map(_subject_name, subjects))
        pins = constraints.named([by for subject in subjects for by in constraints.pinned_by(subject)])
        raise PassFailedException(
            f"no strategy satisfies all constraints: {names} cannot be sharded together; relax {pins}"
        ) from error


def _subject_name(subject: ComputeOp | SSAValue) -> str:
    if isinstance(subject, ComputeOp):
        return f"'{subject.name}' {value_label(subject.outs[0]) if subject.outs else ''}".strip()
    return value_label(subject)
