"""pareto-dp: psi and phi computed by hand, theorem 1, and optimality on small steps."""

from collections import Counter

import numpy as np
import pytest
from duplex_strategies import least_psi
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_files import context, parse
from small_searches import head, report, searched, steps

from shardwright.passes.errors import PassError
from shardwright.passes.search.algorithms.cost_to_go import no_estimate
from shardwright.passes.search.algorithms.duplex_cost import MOST_OPS, DuplexProblem, ShardingTransfer, appended
from shardwright.passes.search.algorithms.duplex_search import CutWalk, Walked, WalkLimits
from shardwright.passes.search.algorithms.interface import Effort, SearchTask
from shardwright.passes.search.algorithms.pareto_dp import search
from shardwright.passes.search.constraints import constraints_of
from shardwright.passes.search.eliminate import solve
from shardwright.passes.search.strategy import build_problem
from shardwright.passes.step.step_view import step_views

slowness = st.sampled_from((1e4, 1e5, 1e6, 1e9))
slopes = st.sampled_from((1e-9, 1e-7, 1e-6))

TWO_LAYERS = """
func.func @step(
  %w: tensor<32x16xf32> {train.param = "w"}, %x: tensor<64x32xf32> {train.batch = "x"},
  %t: tensor<64x16xf32> {train.batch = "t"},
  %count: tensor<f32> {train.step_count}, %lr: tensor<f32> {train.learning_rate}
) -> (tensor<32x16xf32> {train.updates = 0 : i64}) {
  %y = aten.mm %x, %w : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %d = aten.sub.Tensor %y, %t : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %xt = aten.t %x {train.backward} : (tensor<64x32xf32>) -> tensor<32x64xf32>
  %g = aten.mm %xt, %d {train.backward} : (tensor<32x64xf32>, tensor<64x16xf32>) -> tensor<32x16xf32>
  %w.new = train.sgd %w, %g, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<32x16xf32>, tensor<32x16xf32>, tensor<f32>, tensor<f32>) -> tensor<32x16xf32>
  func.return %w.new : tensor<32x16xf32>
}
"""


def task_of(text: str, effort: Effort = Effort(), limit: float = 1e9) -> SearchTask:
    ((view, cluster),) = step_views(parse(text, context()))
    constraints = constraints_of(view)
    return SearchTask(
        view, cluster, lambda prices: build_problem(view, cluster, constraints, prices=prices), limit, effort
    )


def chain(comp: list[float], comm: list[float]) -> DuplexProblem:
    """Return a chain of ops with one state each; `comm` has the seconds of the transfer to each op."""
    count = len(comp)
    return DuplexProblem(
        ops=tuple(range(1, count + 1)),
        updates=frozenset(),
        comp=(np.zeros((1, 2)), *(np.full((1, 2), seconds) for seconds in comp)),
        ends={},
        operands={op: frozenset({op - 1} if op > 1 else ()) for op in range(1, count + 1)},
        origins=(-1, *range(1, count + 1)),
        transfers=tuple(
            ShardingTransfer(op - 1, op, np.full((1, 1, 2), seconds), np.zeros((1, 1, 2)), frozenset({op}))
            for op, seconds in enumerate(comm, start=1)
        ),
    )


def walked(duplex: DuplexProblem) -> Walked:
    allowed = [np.arange(len(costs)) for costs in duplex.comp]
    return CutWalk(duplex, no_estimate(duplex), allowed, WalkLimits(), Counter()).run()


def test_psi_and_phi_of_figure_3():
    """
    Figures 1c and 3: stage i-1 is the All-To-All of X and MatMul, stage i the Reduce-Scatter of Z and the loss.

    The paper gives no numbers. Let one micro-batch take 2 for the All-To-All, 3 for MatMul, 4 for the Reduce-Scatter
    and 1 for the loss. The timeline of micro-batches 1 and 2:

        0-2    1 All-To-All
        2-5    1 MatMul          2 All-To-All until 4        segment 1 of the figure ends: psi + phi of stage i-1 = 5
        5-9    2 MatMul until 8  1 Reduce-Scatter            psi of stage i-1 = 8
        9-13   1 loss until 10   2 Reduce-Scatter            psi + phi of stage i = 13
        13-14  2 loss                                        psi of stage i = 14

    By the equations: stage i-1 has phi = -3 and psi = 0 + 0 + max(0, 2) + max(2, 3) + 3 = 8; stage i has phi = -1 and
    psi = 8 - 3 + max(3, 4) + max(4, 1) + 1 = 14.
    """
    zero = np.zeros(1)
    psi, phi = appended(zero, zero, np.array([[2.0, 2.0]]), np.array([[3.0, 3.0]]))
    assert (psi[0], phi[0]) == (8.0, -3.0)
    psi, phi = appended(psi, phi, np.array([[4.0, 4.0]]), np.array([[1.0, 1.0]]))
    assert (psi[0], phi[0]) == (14.0, -1.0)
    duplex = chain(comp=[3.0, 1.0], comm=[2.0, 4.0])
    found = walked(duplex)
    assert found.complete
    assert found.assignment is not None
    assert found.phases == ((1,), (2,))
    assert duplex.psi(found.assignment, found.phases) == 14.0


def test_communication_of_a_computed_value_waits_for_the_next_phase():
    """Z cannot be reduced before the end of the phase that computes it, and an op cannot precede its operand."""
    duplex = chain(comp=[3.0, 1.0], comm=[2.0, 4.0])
    assert duplex.psi([0, 0, 0], [(1, 2)]) == np.inf
    assert duplex.psi([0, 0, 0], [(2,), (1,)]) == np.inf


def test_a_phase_has_at_most_ten_ops():
    """Twelve ops of 1 second without communication take 2 * 12 seconds in any phases."""
    duplex = chain(comp=[1.0] * 12, comm=[0.0] * 12)
    found = walked(duplex)
    assert max(map(len, found.phases)) <= MOST_OPS
    assert sum(map(len, found.phases)) == 12
    assert found.assignment is not None
    assert duplex.psi(found.assignment, found.phases) == 24.0


@settings(max_examples=100)
@given(steps(most=2), slowness, slopes)
def test_the_found_psi_is_the_least_of_all_strategies(step: str, rate: float, beta: float):
    task = task_of(head(rate, beta=beta) + step)
    found = search(task)
    assert found.solution.statistics["exact"] == 1
    assert found.lower_bound == pytest.approx(found.cost, rel=1e-9)
    assert found.cost == pytest.approx(least_psi(task.free, task.view), rel=1e-9)


@settings(max_examples=40)
@given(steps(most=3), slowness, slopes, st.sampled_from(("dominance", "times", "bound", "guide")))
def test_dropping_dominated_strategies_keeps_the_optimum(step: str, rate: float, beta: float, part: str):
    """Theorem 1, and its stronger form by times: the optimum is the same if no strategy is dropped."""
    text = head(rate, beta=beta) + step
    found, all_kept = search(task_of(text)), search(task_of(text, Effort(without=frozenset({part}))))
    if found.solution.statistics["exact"] and all_kept.solution.statistics["exact"]:
        assert found.cost == pytest.approx(all_kept.cost, rel=1e-9)
    else:
        assert max(found.lower_bound, all_kept.lower_bound) <= min(found.cost, all_kept.cost) * (1 + 1e-9)


@settings(max_examples=25)
@given(steps(most=6), slowness, slopes, st.sampled_from((1, 2)), st.sampled_from((1, 2000)), st.sampled_from((0, 1e-6)))
def test_psi_lies_between_its_bound_and_the_sum(
    step: str, rate: float, beta: float, nodes: int, budget: int, alpha: float
):
    """
    The strategy's sum is at least the least sum. Psi is at most the least sum, as overlap only helps.

    With latencies psi may be larger, as transfers in two phases pay more of them than one transfer in the sum.
    """
    task = task_of(head(rate, alpha=alpha, beta=beta, nodes=nodes) + step, Effort(budget=budget))
    found, least = search(task), solve(task.free.problem)
    assert task.free.problem.cost(found.solution.assignment) >= least.cost * (1 - 1e-9)
    assert 0 < found.lower_bound <= found.cost
    assert alpha or found.cost <= least.cost * (1 + 1e-9)


def test_a_narrow_beam_comes_close():
    """A walk over all cuts finds only a slightly better strategy than a beam whose budget ends early."""
    text = head(1e10, beta=1e-8) + TWO_LAYERS
    exact, beam = search(task_of(text)), search(task_of(text, Effort(budget=200)))
    assert exact.solution.statistics["exact"] == 1
    assert (1 - 1e-9) * exact.cost <= beam.cost <= 1.1 * exact.cost


def test_a_second_run_decides_the_same():
    text = head(1e9, beta=1e-8) + TWO_LAYERS
    once, again = (searched(text, "algorithm=pareto-dp explain=true") for _ in range(2))
    assert str(once) == str(again)


def test_less_memory_takes_more_time():
    text = head(1e9) + TWO_LAYERS
    free = report(searched(text, "algorithm=pareto-dp"))
    tight = report(searched(text, "algorithm=pareto-dp memory=12000"))
    assert float(free["peak_bytes"]) > 12000 >= float(tight["peak_bytes"])
    assert float(free["cost"]) < float(tight["cost"])
    assert float(tight["lower_bound"]) == pytest.approx(float(free["cost"]), rel=1e-9)


def test_a_strategy_that_cannot_fit_is_refused():
    with pytest.raises(PassError, match=r"no strategy fits: the tightest found needs 11272 bytes .* has 8000 bytes"):
        searched(head(1e9) + TWO_LAYERS, "algorithm=pareto-dp memory=8000")


def test_an_unknown_part_is_refused():
    with pytest.raises(PassError, match=r"pareto-dp has no part 'beam'; expected bound, dominance"):
        searched(head() + TWO_LAYERS, "algorithm=pareto-dp without=beam")
