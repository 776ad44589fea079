"""
`algorithm=astar`: HAP's search finds the optimum of elimination with any part disabled, and generates figure 11.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from ir_files import context, parse
from small_searches import head, report, searched, steps

from shardwright.dialects.spmd import AllGatherOp
from shardwright.passes.errors import PassError
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.search.algorithms.astar import PARTS, Synthesis, trace
from shardwright.passes.search.algorithms.order import Reads
from shardwright.passes.search.algorithms.theory import decision_triple
from shardwright.passes.search.constraints import constraints_of
from shardwright.passes.search.problem import Edge, Infeasible, Problem, brute_force
from shardwright.passes.search.reduction import Graph
from shardwright.passes.search.strategy import build_problem
from shardwright.passes.search.strategy_problem import StrategyProblem
from shardwright.passes.shares.prediction import predicted_seconds
from shardwright.passes.step.step_view import step_views

LOSSLESS = sorted(PARTS - {"once"})
"""The parts that affect only the number of programs."""

ROWS = """
[[pin]]
value = "batch.x"
sharding = '[{"gpu"}, {}]'
"""

slowness = st.sampled_from((1e4, 1e6, 1e9))
latencies = st.sampled_from((1e-9, 1e-6, 1e-3))


def synthesised(problem: Problem, without: Iterable[str] = (), budget: int | None = None) -> Synthesis:
    """Return the search for a problem; a node reads its neighbours with lower numbers."""
    pairs = ((min(edge.u, edge.v), max(edge.u, edge.v)) for edge in problem.edges)
    reads = Reads.of_pairs(len(problem.unary), pairs)
    return Synthesis(problem, reads, Graph.of(problem), frozenset(without), budget)


@seed(1)
@settings(max_examples=200, deadline=None)
@given(steps(), slowness, latencies)
def test_astar_finds_the_optimum_of_elimination(step: str, rate: float, alpha: float) -> None:
    text = head(rate, alpha) + step
    best, found = report(searched(text)), report(searched(text, "algorithm=astar"))
    assert found["cost"] == pytest.approx(best["cost"], rel=1e-9)
    assert found["lower_bound"] == pytest.approx(found["cost"], rel=1e-9)


@pytest.mark.parametrize("part", LOSSLESS)
def test_astar_finds_the_optimum_without_each_part(part: str) -> None:
    @seed(2)
    @settings(max_examples=15, deadline=None, database=None)
    @given(steps(), slowness, latencies, st.sampled_from((1, 2)))
    def compare(step: str, rate: float, alpha: float, nodes: int) -> None:
        text = head(rate, alpha, nodes=1 if part == "order" else nodes) + step
        found = report(searched(text, f"algorithm=astar without={part}"))
        assert found["cost"] == pytest.approx(report(searched(text))["cost"], rel=1e-9)

    compare()


def random_problem(number: int, nodes: int = 6, states: int = 4) -> Problem:
    """Return a problem with forbidden states and pairs, parallel edges, nodes without edges and ties."""
    random = np.random.default_rng(number)
    sizes: list[int] = random.integers(1, states + 1, random.integers(1, nodes + 1)).tolist()
    forbidden, integral = random.choice([0.0, 0.1, 0.4]), random.random() < 0.5

    def costs(*shape: int) -> np.ndarray:
        drawn = random.integers(0, 3, shape).astype(float) if integral else random.random(shape)
        return np.where(random.random(shape) < forbidden, np.inf, drawn)

    pairs = random.integers(0, len(sizes), (random.integers(0, 3 * len(sizes)), 2)).tolist()
    edges = (Edge(u, v, costs(sizes[u], sizes[v])) for u, v in pairs if u != v)
    return Problem(tuple(costs(size) for size in sizes), tuple(edges))


@pytest.mark.parametrize(
    "without",
    [(), *((part,) for part in LOSSLESS), ("order", "fusion", "bound"), ("ascent", "redundant"), ("bound", "states")],
    ids="-".join,
)
def test_synthesis_equals_brute_force(without: tuple[str, ...]) -> None:
    """On 60 problems both find the same optimum, or that the problem is infeasible."""
    for number in range(60):
        problem = random_problem(number)
        try:
            best = brute_force(problem).cost
        except Infeasible:
            with pytest.raises(Infeasible):
                synthesised(problem, without).run()
            continue
        solution = synthesised(problem, without).run()
        assert solution.cost == pytest.approx(best, rel=1e-9, abs=1e-12)
        assert problem.cost(solution.assignment) == solution.cost
        assert solution.lower_bound == pytest.approx(best, rel=1e-9, abs=1e-12)


def frustrated_problem(number: int, nodes: int = 12, states: int = 3) -> Problem:
    """Return a dense problem of random costs, where the bound of dual ascent is not tight."""
    random = np.random.default_rng(number)
    edges = (
        Edge(u, v, random.random((states, states))) for u in range(nodes) for v in range(u) if random.random() < 0.7
    )
    return Problem(tuple(random.random(states) for _ in range(nodes)), tuple(edges))


@pytest.mark.parametrize("number", range(4))
def test_a_spent_budget_leaves_an_honest_gap(number: int) -> None:
    problem = frustrated_problem(number)
    optimum = synthesised(problem).run()
    cut = synthesised(problem, budget=5).run()
    assert optimum.is_optimal
    assert not cut.is_optimal
    assert cut.statistics["taken"] == 5
    assert cut.lower_bound <= optimum.cost <= cut.cost


def test_each_part_reduces_the_number_of_programs() -> None:
    """Each of these parts reduces the number of programs on a dense problem."""
    problem = frustrated_problem(1, nodes=8)
    taken = {
        without: synthesised(problem, without).run().statistics["taken"]
        for without in ((), ("ascent",), ("bound",), ("ascent", "dominance"), ("ascent", "redundant"))
    }
    assert taken[()] < taken["ascent",] < taken["bound",]
    assert taken["ascent",] < taken["ascent", "dominance"] == taken["ascent", "redundant"]


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(PassError, match=r"no part 'fusions'; expected ascent, bound, "):
        searched(head() + SMALL, "algorithm=astar without=fusions")


REGATHERED = """
func.func @step(
  %x: tensor<64x64xf32> {train.batch = "x"}, %y: tensor<64x64xf32> {train.batch = "y"}
) -> tensor<64x64xf32> {
  %a = aten.tril %x {diagonal = 0 : i64} : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %b = aten.triu %x {diagonal = 0 : i64} : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %c = aten.add.Tensor %a, %b : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %c : tensor<64x64xf32>
}
"""
"""Two ops that need the full value of an argument."""


def test_users_share_one_communication(tmp_path: Path) -> None:
    """Without `once` each of two users gathers the argument for itself; with it they share a working copy."""
    (pins := tmp_path / "pins.toml").write_text(ROWS)
    shared, apart = (
        searched(head(1e9, 1e-5) + REGATHERED, f'algorithm=astar pins="{pins}" {without}')
        for without in ("", "without=once")
    )
    gather = 1e-5 + 64 * 64 * 4 / 2 * 1e-9
    assert float(report(apart)["cost"]) - float(report(shared)["cost"]) == pytest.approx(gather, rel=1e-3)
    assert "spmd.working" in str(shared)
    assert "spmd.working" not in str(apart)


SMALL = """
func.func @step(
  %e1: tensor<64x32xf32> {train.batch = "x"}, %e2: tensor<32x16xf32> {train.param = "w"}
) -> (tensor<f32> {train.loss}) {
  %e3 = aten.mm %e1, %e2 : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %loss = aten.sum %e3 : (tensor<64x16xf32>) -> tensor<f32>
  func.return %loss : tensor<f32>
}
"""

FIGURE_11 = (
    ("Placeholder-Shard(0)",),
    ("Placeholder-Shard(0)", "Parameter()"),
    ("Placeholder-Shard(0)", "Parameter-Shard(1)"),
    ("Placeholder-Shard(0)", "Parameter()", "MatMul"),
    ("Placeholder-Shard(0)", "Parameter-Shard(1)", "MatMul"),
    ("Placeholder-Shard(0)", "Parameter-Shard(1)", "MatMul"),
    ("Placeholder-Shard(0)", "Parameter()", "MatMul", "Sum"),
)
"""The instructions of the programs 1 to 7."""

PROPERTIES = {
    "e1": ("{} Placeholder-Shard(0) {e1 | All-Gather(0)}",),
    "e2": ("{} Parameter() {e2 | Identity}", "{} Parameter-Shard(1) {e2 | All-Gather(1)}"),
    "e3": (
        "{e1 | All-Gather(0), e2 | Identity} MatMul(e1, e2) {e3 | All-Gather(0)}",
        "{e1 | Identity, e2 | All-Gather(1)} MatMul(e1, e2) {e3 | All-Gather(1)}",
    ),
    "loss": ("{e3 | All-Gather(0)} Sum(e3) {loss | All-Reduce}", "{e3 | All-Gather(1)} Sum(e3) {loss | All-Reduce}"),
}
"""The theory of the figure: e1 is split along dim 0 only, e2 along dim 1 only."""


def figure_11() -> tuple[StrategyProblem, Reads]:
    """Return the problem of the figure's program, restricted to its theory, and the neighbours of its nodes."""
    ctx = context()
    ((view, cluster),) = step_views(parse(head(1e9, 1e-5) + SMALL, ctx))
    whole = build_problem(view, cluster, constraints_of(view))
    kept: list[list[int]] = []
    for decision, triples in zip(whole.decisions, PROPERTIES.values(), strict=True):
        texts = [str(decision_triple(decision, state, ("gpu",))) for state in range(len(decision.states))]
        kept.append([texts.index(triple) for triple in triples])
    unary = tuple(costs[states] for costs, states in zip(whole.problem.unary, kept, strict=True))
    # The loss need not be reduced: a program is complete when it has the loss | All-Reduce.
    unary = (*unary[:3], unary[3] - whole.ends[3][kept[3]])
    edges = [replace(edge, table=edge.table[np.ix_(kept[edge.u], kept[edge.v])]) for edge in whole.problem.edges]
    # No rule of figure 9 makes e2 | All-Gather(1) of e2 | Identity, and the figure has no communication of e3.
    (w,) = (number for number, edge in enumerate(edges) if edge.u == 1)
    edges[w] = replace(edges[w], table=np.where([[False, True], [False, False]], np.inf, edges[w].table))
    (y,) = (number for number, edge in enumerate(edges) if edge.u == 2)
    edges[y] = replace(edges[y], table=np.where(np.eye(2, dtype=bool), edges[y].table, np.inf))
    # The figure supposes that only Placeholder-Shard(0) has an empty precondition: e2 comes after e1.
    problem = Problem(unary, (*edges, Edge(0, 1, np.zeros((1, 2)))))
    decisions = [replace(d, states=tuple(d.states[s] for s in k)) for d, k in zip(whole.decisions, kept, strict=True)]
    reads = Reads.of_pairs(4, [(0, 1), (0, 2), (1, 2), (2, 3)])
    return replace(whole, problem=problem, decisions=decisions), reads


def test_the_search_generates_the_programs_of_figure_11() -> None:
    """When the score is the cost of a program, the search generates the seven programs in the figure's order."""
    problem, reads = figure_11()
    programs = trace(problem, ("gpu",), frozenset({"fusion", "order", "bound"}), reads)
    names = [tuple(triple.instruction.replace("(e1, e2)", "").replace("(e3)", "") for triple in p) for p in programs]
    assert tuple(names) == FIGURE_11
    assert [str(triple) for triple in programs[3]][-1] == PROPERTIES["e3"][0]
    assert {str(program[-1]) for program in programs[4:6]} == set(PROPERTIES["e3"])
    assert str(programs[-1][-1].postcondition[0]) == "loss | All-Reduce"


def test_a_better_estimate_leaves_out_programs_of_figure_11() -> None:
    """With an estimate of the cost to come, the search generates only five of the seven programs."""
    problem, reads = figure_11()
    plain = trace(problem, ("gpu",), frozenset({"fusion", "order", "bound"}), reads)
    better = trace(problem, ("gpu",), frozenset({"fusion", "order"}), reads)
    assert [plain.index(program) + 1 for program in better] == [1, 2, 3, 4, 7]


FOUR = """
#gpu = #spmd.device<"gpu", flops = {float32 = 1.0e13}, bandwidth = 1.0e12, memory = 1.0e12, launch = 0.0>
#link = #spmd.link<"gpu", alpha = 1.0e-5, beta = 1.0e-10>
spmd.mesh @mesh = <["gpu"=4]>
spmd.cluster @four on @mesh devices [#gpu] placement [0, 0, 0, 0] links [#link]
func.func @step(%x: tensor<1024x1024xf32> {train.batch = "x"}) -> tensor<1024x1024xf32> {
  %y = aten.tril %x {diagonal = 0 : i64} : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
  func.return %y : tensor<1024x1024xf32>
}
"""
"""An op that needs its full operand, a split value of 4 MiB."""


def gathered(share: float, pins: Path) -> tuple[float, str]:
    """Return the cost of the step when rank 0 has this share of the value, and the method of the all-gather."""
    ctx = context()
    module = parse(FOUR, ctx)
    search, rest = f'search-strategy{{algorithm=astar pins="{pins}"}}', (1.0 - share) / 3.0
    ratios = ",".join(map(str, (share, rest, rest, rest)))
    balance = f'balance-ratios{{ratios="{ratios}"}}'
    run_pipeline(ctx, module, f"{search},{balance},{search},communicate")
    (gather,) = (op for op in module.walk() if isinstance(op, AllGatherOp))
    assert gather.method is not None
    return float(report(module)["cost"]), gather.method.data


def test_skewed_shares_are_gathered_by_broadcasts(tmp_path: Path) -> None:
    """
    Padded parts win for even shares, broadcasts for skewed ones (figure 4), and the search uses the cheaper method.

    A padded gather sends 3 times the largest part to each device and starts once, a broadcast sends the value and
    starts 4 times.
    """
    (pins := tmp_path / "pins.toml").write_text(ROWS)
    size, compute = 1024 * 1024 * 4, 2 * 1024 * 1024 * 4 / 1e12
    methods: list[str] = []
    for share in (0.25, 0.3, 0.34, 0.38, 0.5, 0.7, 0.9):
        cost, method = gathered(share, pins)
        padded, broadcasts = 1e-5 + 3 * share * size * 1e-10, 4e-5 + size * 1e-10
        assert cost == pytest.approx(compute + min(padded, broadcasts), rel=2e-3)
        methods.append(method)
    assert methods == ["flat", "padded", "padded", *["grouped_broadcast"] * 4]


MIXED = """
#fast = #spmd.device<"fast", flops = {{float32 = 1.0e11}}, bandwidth = 1.0e11, memory = 1.0e9, launch = 0.0>
#slow = #spmd.device<"slow", flops = {{float32 = 1.0e10}}, bandwidth = 1.0e10, memory = 1.0e9, launch = 0.0>
#link = #spmd.link<"gpu", alpha = {alpha}, beta = {beta}>
spmd.mesh @mesh = <["gpu"=2]>
spmd.cluster @mixed on @mesh devices [#fast, #slow] placement [0, 1] links [#link]
func.func @step(
  %w: tensor<64x64xf32> {{train.param = "w"}}, %v: tensor<64x64xf32> {{train.param = "v"}},
  %x: tensor<256x64xf32> {{train.batch = "x"}}, %t: tensor<256x64xf32> {{train.batch = "t"}},
  %count: tensor<f32> {{train.step_count}}, %lr: tensor<f32> {{train.learning_rate}}
) -> (tensor<64x64xf32> {{train.updates = 0 : i64}}, tensor<64x64xf32> {{train.updates = 1 : i64}}) {{
  %y = aten.mm %x, %w : (tensor<256x64xf32>, tensor<64x64xf32>) -> tensor<256x64xf32>
  %z = aten.mm %y, %v : (tensor<256x64xf32>, tensor<64x64xf32>) -> tensor<256x64xf32>
  %dz = aten.sub.Tensor %z, %t : (tensor<256x64xf32>, tensor<256x64xf32>) -> tensor<256x64xf32>
  %yt = aten.t %y {{train.backward}} : (tensor<256x64xf32>) -> tensor<64x256xf32>
  %dv = aten.mm %yt, %dz {{train.backward}} : (tensor<64x256xf32>, tensor<256x64xf32>) -> tensor<64x64xf32>
  %vt = aten.t %v {{train.backward}} : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %dy = aten.mm %dz, %vt {{train.backward}} : (tensor<256x64xf32>, tensor<64x64xf32>) -> tensor<256x64xf32>
  %xt = aten.t %x {{train.backward}} : (tensor<256x64xf32>) -> tensor<64x256xf32>
  %dw = aten.mm %xt, %dy {{train.backward}} : (tensor<64x256xf32>, tensor<256x64xf32>) -> tensor<64x64xf32>
  %w.new = train.sgd %w, %dw, %count, %lr {{absent = ["momentum_buffer"]}}
    : (tensor<64x64xf32>, tensor<64x64xf32>, tensor<f32>, tensor<f32>) -> tensor<64x64xf32>
  %v.new = train.sgd %v, %dv, %count, %lr {{absent = ["momentum_buffer"]}}
    : (tensor<64x64xf32>, tensor<64x64xf32>, tensor<f32>, tensor<f32>) -> tensor<64x64xf32>
  func.return %w.new, %v.new : tensor<64x64xf32>, tensor<64x64xf32>
}}
"""


@pytest.mark.parametrize(("alpha", "beta", "best"), [("1.0e-5", "1.0e-10", 0), ("1.0e-6", "1.0e-9", 1)])
def test_alternation_keeps_the_best_turn(alpha: str, beta: str, best: int) -> None:
    """On a mixed cluster the program of the best turn is returned with the ratios of that turn (HAP 3.1)."""
    text, turn = MIXED.format(alpha=alpha, beta=beta), "search-strategy{algorithm=astar},balance-ratios"
    ctx = context()
    module = parse(text, ctx)
    turns: list[tuple[float, str]] = []
    for _ in range(3):
        run_pipeline(ctx, module, turn)
        turns.append((predicted_seconds(module), str(module)))
    assert min(range(3), key=lambda number: turns[number][0]) == best
    assert turns[1 - best][0] > turns[best][0]
    module = parse(text, ctx)
    run_pipeline(ctx, module, f'fixed-point{{pipeline="{turn}" max=3}}')
    assert str(module) == turns[best][1]
