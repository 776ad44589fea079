"""The search within memory finds the best strategy of all prices, with few solutions, and stops if none is worth it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import pytest
from ir_files import context
from odd_steps import one_layer_gpt2
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import PassFailedException

from shardwright.api.compile import import_training_step
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import parse_mesh
from shardwright.ir.submesh import on_mesh
from shardwright.models import training_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.search.constraints import constraints_of
from shardwright.passes.search.eliminate import solve
from shardwright.passes.search.memory import Prices, StrategyMemory
from shardwright.passes.search.objective import Weights
from shardwright.passes.search.problem import Solution
from shardwright.passes.search.shared_tables import Tables
from shardwright.passes.search.strategy import build_problem
from shardwright.passes.search.strategy_problem import StrategyProblem
from shardwright.passes.search.within_memory import ConstrainedSolution, measured, solve_within
from shardwright.passes.step.step_view import step_views


@cache
def prepared(name: str) -> ModuleOp:
    """Return a shipped step, or a GPT-2 of one layer, as `search-strategy` gets it."""
    module = import_training_step(one_layer_gpt2() if name == "gpt2" else training_step(name))
    run_pipeline(context(), module, "prepare")
    return module


class Search:
    """The search within memory for one step on four devices."""

    def __init__(self, name: str) -> None:
        module = prepared(name).clone()
        add_cluster(module, on_mesh(find_cluster("h100-8x8"), parse_mesh("x=2,y=2")))
        ((self.view, self.cluster),) = step_views(module)
        constraints, self.tables, self.solved = constraints_of(self.view), Tables(self.cluster), 0
        self.build = partial(build_problem, self.view, self.cluster, constraints, Weights(), tables=self.tables)

    def _priced(self, prices: Prices) -> StrategyProblem:
        return self.build(prices=prices)

    def solve(self, problem: StrategyProblem, allowance: float = 0.0, known: Solution | None = None) -> Solution:
        self.solved += 1
        return solve(problem.problem)

    def within(self, limit: float, worth: float = float("inf")) -> ConstrainedSolution:
        return solve_within(self.view, self.cluster, self._priced, self.solve, limit, worth=worth)

    def at(self, prices: Prices) -> ConstrainedSolution:
        """Return the cheapest strategy at given prices."""
        memory, problem = StrategyMemory(self.view, self.cluster), self.build(prices=prices)
        return measured(memory, problem, self.build(), self.solve(problem), bound=None)


@pytest.mark.parametrize(("name", "share"), [("mlp-tiny", 0.8), ("mlp-tiny", 0.5), ("gpt2", 0.5)])
def test_no_price_of_the_first_peak_has_a_cheaper_strategy_that_fits(name: str, share: float):
    search = Search(name)
    free = search.at(Prices())
    limit = share * free.peak_bytes
    search.solved = 0
    found = search.within(limit)
    assert search.solved <= 10
    assert found.lower_bound <= found.cost
    assert found.peak_bytes <= limit
    first = list(search.view.func.body.block.ops).index(free.peak_op)
    scale = free.cost / limit
    tried = [search.at(Prices({first: scale * 2.0**power})) for power in range(-2, 9)]
    fitting = [other.cost for other in tried if other.peak_bytes <= limit]
    assert fitting
    assert found.cost <= min(fitting) * (1.0 + 1e-6)


def test_a_strategy_that_is_not_worth_it_is_refused_early():
    search = Search("gpt2")
    limit = 0.5 * search.at(Prices()).peak_bytes
    found = search.within(limit)
    before = search.solved
    assert search.within(limit, worth=1.01 * found.cost).cost == found.cost
    whole, before = search.solved - before, search.solved
    with pytest.raises(PassFailedException, match=r"strategies that fit cost at least .* ms that are of interest"):
        search.within(limit, worth=0.9 * found.lower_bound)
    assert search.solved - before < whole


def test_only_the_best_strategy_is_searched_thoroughly():
    """Solutions that lead to the right price may be far from the optimum; the last search starts from the best."""
    search = Search("gpt2")
    limit = 0.5 * search.at(Prices()).peak_bytes
    starts: list[Solution | None] = []

    def hasty(problem: StrategyProblem, allowance: float, known: Solution | None) -> Solution:
        starts.append(known)
        found = solve(problem.problem)
        return found if known is not None else replace(found, lower_bound=0.5 * found.lower_bound)

    found = solve_within(search.view, search.cluster, search._priced, hasty, limit)
    *quick, last = starts
    assert all(start is None for start in quick)
    assert last is not None
    assert found.peak_bytes <= limit
    assert found.cost == search.within(limit).cost
