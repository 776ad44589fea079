"""A folded problem has the costs of the whole step, for solutions in which equal layers make equal decisions."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from shardwright.ir.cluster_file import find_cluster
from shardwright.passes.planning.candidate_compiler import CandidateCompiler
from shardwright.passes.planning.candidates import Candidate, Layout, preset, searched
from shardwright.passes.planning.fold import Folder, folding
from shardwright.passes.planning.shrink import short_steps
from shardwright.passes.search.constraints import Constraints
from shardwright.passes.search.decided import transferred
from shardwright.passes.search.eliminate import solve
from shardwright.passes.search.objective import Weights
from shardwright.passes.search.strategy import build_problem
from shardwright.passes.search.strategy_problem import StrategyProblem
from shardwright.passes.step.step_view import step_views


def states_of(problem: StrategyProblem, strategy) -> np.ndarray:
    """The assignment of a problem that a strategy is."""
    found: list[int] = []
    for decision in problem.decisions:
        if decision.copy:
            chosen = decision.states.index(strategy.copies[decision.subject][0])
        elif decision.subject in strategy.homes:
            chosen = decision.states.index(strategy.homes[decision.subject])
        else:
            chosen = decision.states.index(strategy.ops[decision.subject])
        found.append(chosen)
    return np.array(found)


def test_what_a_folded_solution_costs_is_what_it_costs_the_whole_step(deep: ModuleOp):
    made = folding(deep)
    assert made is not None
    counterparts = made.counterparts(deep)
    assert counterparts is not None
    weights = Weights(parameters=0.5, activations=0.8)
    ((short_view, cluster),), ((whole_view, _),) = step_views(made.module), step_views(deep)
    short = build_problem(short_view, cluster, Constraints(), weights)
    whole = build_problem(whole_view, cluster, Constraints(), weights)
    folded = Folder(short_view, made.count).folded(short)
    assert folded is not None
    assert len(folded.problem.unary) < len(short.problem.unary) < len(whole.problem.unary)
    bench = CandidateCompiler(deep, cluster)
    solved = bench.solve(Candidate(Layout(bench.own_mesh), searched(0.5, 0.8, bucketed=False)))
    assert solved.is_folded
    ((strategy, sums),) = solved.found
    (source, _, _) = solved.step.stages[0]
    states = states_of(whole, transferred(strategy, source, whole_view, counterparts))
    of_whole = whole.sums(states)
    for name in ("compute", "beside", "blocking"):
        assert getattr(sums, name) == pytest.approx(getattr(of_whole, name), rel=1e-9), name
    solution = solve(folded.problem)
    assert whole.problem.cost(states) >= solution.lower_bound * (1 - 1e-9)
    expanded = folded.expanded(solution.assignment)
    assert folded.merged([np.array([state]) for state in expanded]) == solution.assignment.tolist()
    total = sum(f * float(c[x]) for f, c, x in zip(folded.node_factors, short.problem.unary, expanded, strict=True))
    for factor, edge in zip(folded.edge_factors, short.problem.edges, strict=True):
        total += factor * float(edge.table[expanded[edge.u], expanded[edge.v]])
    assert total == pytest.approx(solution.cost, rel=1e-9)


def test_a_folded_strategy_is_about_as_good_as_one_of_the_whole_problem(deep: ModuleOp):
    ((view, cluster),) = step_views(deep)
    optimum = solve(build_problem(view, cluster, Constraints(), Weights()).problem)
    made = folding(deep)
    assert made is not None
    ((short_view, _),) = step_views(made.module)
    folded = Folder(short_view, made.count).folded(build_problem(short_view, cluster, Constraints(), Weights()))
    assert folded is not None
    least = solve(folded.problem).cost
    assert optimum.lower_bound * (1 - 1e-9) <= least <= 1.01 * optimum.cost


def test_short_steps_take_over_the_strategy_of_the_whole(deep: ModuleOp):
    cluster = find_cluster("rtx4090-4x4")
    bench = CandidateCompiler(deep, cluster)
    found = short_steps(deep)
    assert found is not None
    solved = bench.solve(Candidate(Layout(cluster.mesh), preset(("dp", ("node", "gpu")))))
    assert solved.is_folded
    alone, given = CandidateCompiler(found[1], cluster), CandidateCompiler(found[1], cluster, folding=bench.folding)
    apart = alone.finish(alone.solve(solved.candidate))
    taken = given.finish(solved)
    assert taken.seconds == pytest.approx(apart.seconds, rel=1e-6)


def test_few_layers_are_not_folded(tiny: ModuleOp):
    assert folding(tiny) is None
