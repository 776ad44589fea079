"""The bound of a step: no program that the passes make of any strategy is simulated to be faster."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from ir_files import context, parse
from launches import covering, names_of
from xdsl.dialects.builtin import ModuleOp

from shardwright.ir.cluster import Cluster, Device, Interference, Link
from shardwright.ir.mesh import Mesh
from shardwright.ir.topology import Host, Level, Switch, Topology
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.errors import PassError
from shardwright.passes.insert_resharding import InsertReshardingPass
from shardwright.passes.overlap import OverlapPass
from shardwright.passes.planning.bound import LIMITS, ROUNDS, Bound, _Bounding, compute_bound, plan_bound
from shardwright.passes.planning.candidate_compiler import CandidateCompiler
from shardwright.passes.planning.candidates import Layout
from shardwright.passes.planning.explore import Explorer
from shardwright.passes.planning.layouts import LayoutConstraints, meshes
from shardwright.passes.planning.notes import Allowance
from shardwright.passes.search.constraints import Constraints
from shardwright.passes.search.decided import strategy_of, write_strategy
from shardwright.passes.search.eliminate import solve
from shardwright.passes.search.problem import Solution
from shardwright.passes.search.strategy import build_problem
from shardwright.passes.search.strategy_problem import StrategyProblem
from shardwright.passes.select_collectives import SelectCollectivesPass
from shardwright.passes.step.step_view import StepView, cluster_of_module, step_views


def step_bound(view: StepView, cluster: Cluster, *, enough: float = math.inf) -> Bound:
    """The bound of all whole-batch plans with even shares of a step on one mesh; `enough` seconds end the search."""
    return _Bounding(view, cluster, Constraints(), LIMITS, None).run(None, ROUNDS, enough)


HEAD = """
#cpu = #spmd.device<"cpu", flops = {{float32 = {rate}}}, bandwidth = {bandwidth}, memory = 1.0e9, launch = 1.0e-6>
#node = #spmd.link<"node", alpha = 1.0e-5, beta = {slow}>
#gpu = #spmd.link<"gpu", alpha = {alpha}, beta = {beta}>
spmd.mesh @mesh = <[{axes}]>
spmd.cluster @test on @mesh devices [#cpu] placement [{placement}] links [{links}]
"""

FORWARD = """
func.func @step(%x: tensor<64x32xf32> {train.batch = "x"}, %w: tensor<32x48xf32> {train.param = "w"})
    -> tensor<64x48xf32> {
  %y = aten.mm %x, %w : (tensor<64x32xf32>, tensor<32x48xf32>) -> tensor<64x48xf32>
  %z = aten.relu %y : (tensor<64x48xf32>) -> tensor<64x48xf32>
  func.return %z : tensor<64x48xf32>
}
"""

STEP = """
func.func @step(
  %w: tensor<64x48xf32> {train.param = "w"}, %v: tensor<48x32xf32> {train.param = "v"},
  %x: tensor<256x64xf32> {train.batch = "x"}, %t: tensor<256x32xf32> {train.batch = "t"},
  %count: tensor<f32> {train.step_count}, %lr: tensor<f32> {train.learning_rate}
) -> (tensor<64x48xf32> {train.updates = 0 : i64}, tensor<48x32xf32> {train.updates = 1 : i64}) {
  %y = aten.mm %x, %w : (tensor<256x64xf32>, tensor<64x48xf32>) -> tensor<256x48xf32>
  %h = aten.relu %y : (tensor<256x48xf32>) -> tensor<256x48xf32>
  %z = aten.mm %h, %v : (tensor<256x48xf32>, tensor<48x32xf32>) -> tensor<256x32xf32>
  %dz = aten.sub.Tensor %z, %t : (tensor<256x32xf32>, tensor<256x32xf32>) -> tensor<256x32xf32>
  %ht = aten.t %h {train.backward} : (tensor<256x48xf32>) -> tensor<48x256xf32>
  %dv = aten.mm %ht, %dz {train.backward} : (tensor<48x256xf32>, tensor<256x32xf32>) -> tensor<48x32xf32>
  %vt = aten.t %v {train.backward} : (tensor<48x32xf32>) -> tensor<32x48xf32>
  %dh = aten.mm %dz, %vt {train.backward} : (tensor<256x32xf32>, tensor<32x48xf32>) -> tensor<256x48xf32>
  %dy = aten.mul.Tensor %dh, %h {train.backward}
    : (tensor<256x48xf32>, tensor<256x48xf32>) -> tensor<256x48xf32>
  %xt = aten.t %x {train.backward} : (tensor<256x64xf32>) -> tensor<64x256xf32>
  %dw = aten.mm %xt, %dy {train.backward} : (tensor<64x256xf32>, tensor<256x48xf32>) -> tensor<64x48xf32>
  %w.new = train.sgd %w, %dw, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<64x48xf32>, tensor<64x48xf32>, tensor<f32>, tensor<f32>) -> tensor<64x48xf32>
  %v.new = train.sgd %v, %dv, %count, %lr {absent = ["momentum_buffer"]}
    : (tensor<48x32xf32>, tensor<48x32xf32>, tensor<f32>, tensor<f32>) -> tensor<48x32xf32>
  func.return %w.new, %v.new : tensor<64x48xf32>, tensor<48x32xf32>
}
"""
"""Two layers; `%h` has three users, and what one wants of it may be what another does."""

_CHAIN = """%dg = aten.neg %dh {train.backward} : (tensor<256x48xf32>) -> tensor<256x48xf32>
  %dq = aten.abs %dg {train.backward} : (tensor<256x48xf32>) -> tensor<256x48xf32>
  %dy = aten.mul.Tensor %dq, %h"""
COMPILED_STEP = STEP.replace("%dy = aten.mul.Tensor %dh, %h", _CHAIN).replace(
    "-> (tensor<64x48xf32> {train.updates = 0 : i64}, tensor<48x32xf32> {train.updates = 1 : i64}) {",
    "-> (tensor<64x48xf32> {train.updates = 0 : i64}, tensor<48x32xf32> {train.updates = 1 : i64})"
    " attributes {train.compiled} {",
)
"""The same, to be compiled, with a chain of ops that is one kernel where no collective comes between."""

MOST = 400
"""How many programs are made where not all strategies are tried."""

LINKS = {"slow": (1e-5, 1e-8), "even": (1e-6, 1e-9), "fast": (1e-7, 1e-11)}


def module_of(text: str, link: str, nodes: int = 1, devices: str = "") -> ModuleOp:
    """A step on two devices, or on nodes of two each."""
    alpha, beta = LINKS[link]
    many = nodes > 1
    head = HEAD.format(
        rate="1.0e9",
        bandwidth="1.0e9",
        slow=f"{4 * beta:.12f}",
        alpha=f"{alpha:.12f}",
        beta=f"{beta:.12f}",
        axes=f'"node"={nodes}, "gpu"=2' if many else '"gpu"=2',
        placement=devices or ", ".join("0" for _ in range(2 * nodes)),
        links="#node, #gpu" if many else "#gpu",
    )
    return parse(head + text, context())


def simulated(module: ModuleOp, problem: StrategyProblem, states: tuple[int, ...]) -> float:
    """The seconds of the program that the passes make of a strategy; infinite where it cannot be."""
    ((view, _),) = step_views(module)
    assignment = np.array(states, dtype=np.int64)
    write_strategy(view, strategy_of(problem, Solution(assignment, 0.0, 0.0), saves_memory=False))
    made = module.clone()
    try:
        for each in (InsertReshardingPass(), SelectCollectivesPass(), OverlapPass()):
            each.apply(context(), made)
    except (PassError, ValueError):
        return math.inf
    return sum(each.seconds for each in simulate_module(made, every_rank=True))


def strategies(problem: StrategyProblem, seed: int = 0) -> Iterator[tuple[int, ...]]:
    """All that can be, or some where these are many: by chance, and such as have little to send."""
    sizes = [len(costs) for costs in problem.problem.unary]
    if math.prod(sizes) <= MOST:
        yield from (x for x in itertools.product(*map(range, sizes)) if problem.problem.cost(x) < math.inf)
        return
    chance = random.Random(seed)
    for number in range(MOST // 8):
        warped = tuple(costs * 0.0 + np.array([chance.random() ** 4 for _ in costs]) for costs in problem.problem.unary)
        scale = 10.0 ** (number % 9 - 6)
        found = solve(replace(problem.problem, unary=tuple(scale * costs for costs in warped)))
        yield tuple(int(state) for state in found.assignment)


STEPS = {
    "forward": (FORWARD, 1),
    "forward on nodes": (FORWARD, 2),
    "step": (STEP, 1),
    "step on nodes": (STEP, 2),
    "compiled step": (COMPILED_STEP, 1),
}
"""Texts, and the number of nodes of two devices each."""


@pytest.mark.parametrize(("name", "link"), covering(STEPS, LINKS))
def test_no_program_is_faster(name: str, link: str) -> None:
    """The bound is below every program, and not far below the best of them where nothing need be sent."""
    text, nodes = STEPS[name]
    module = module_of(text, link, nodes)
    ((view, cluster),) = step_views(module)
    bound = step_bound(view, cluster)
    problem = build_problem(view, cluster, Constraints())
    best = min(simulated(module, problem, states) for states in strategies(problem))
    assert 0.0 < bound.seconds <= best * (1.0 + 1e-9)
    assert bound.seconds >= 0.3 * best


@pytest.mark.parametrize("link", LINKS)
def test_the_chosen_plan_is_above_the_bound(link: str) -> None:
    """The chosen plan is no faster than the lower bound over all meshes."""
    module = module_of(STEP, link, 2)
    bench = CandidateCompiler(module, cluster_of_module(module))
    explorer = Explorer(bench, LayoutConstraints(stages=1, micro_batches=1, duplex=False), Allowance(20_000))
    best = explorer.run()
    assert best is not None
    bound = plan_bound(bench, map(Layout, meshes(bench.cluster)))
    assert bound.seconds <= best.seconds
    assert all(note.seconds is None or note.exposed is None or bound.seconds <= note.seconds for note in explorer.notes)
    assert compute_bound(bench) <= bound.seconds


def some_cluster(chance: random.Random) -> Cluster:
    """A cluster of some links, measured or not, of one kind of device or two."""
    mesh = chance.choice([Mesh.of(gpu=2), Mesh.of(gpu=4), Mesh.of(node=2, gpu=2)])
    names = [axis.name for axis in mesh.spatial]
    first = Device("a", (("float32", 10 ** chance.uniform(8, 10)),), 10 ** chance.uniform(8, 10), 1e12, 1e-7)
    second = replace(first, kind="b", flops=(("float32", 10 ** chance.uniform(8, 10)),))
    links = [some_link(chance, name) for name in (*names, *(["-".join(names)] if len(names) > 1 else []))]
    placement = tuple(chance.choice([0, 0, 1]) for _ in range(mesh.device_count))
    around = Interference(chance.choice([1.0, 1.3, 0.8]), chance.choice([1.0, 1.5, 0.7]))
    return Cluster("some", mesh, (first, second), placement, tuple(links), around)


def some_link(chance: random.Random, name: str) -> Link:
    """A link whose measured times, if there are any, go up and down, and whose starts take some of them."""
    alpha, beta = 10 ** chance.uniform(-7, -5), 10 ** chance.uniform(-11, -8)
    points: list[tuple[str, float, float]] = []
    if chance.random() < 0.5:
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            sizes = (1e3, 1e4, 1e5, 1e6)
            points += [(kind, size, (alpha + beta * size) * chance.uniform(0.4, 2.0)) for size in sizes]
            points += [(f"{kind}:start", size, 0.5 * (alpha + beta * size)) for size in sizes]
    return Link(name, alpha, beta, points=tuple(points))


@pytest.mark.parametrize("seed", covering(range(8), every=4))
def test_no_program_is_faster_on_clusters_of_any_sort(seed: int) -> None:
    """Whatever was measured, and however devices differ, twenty strategies and more are not below the bound."""
    cluster = some_cluster(random.Random(seed))
    module = module_of(STEP, "even")
    add_cluster(module, cluster)
    ((view, given),) = step_views(module)
    assert given.placement == cluster.placement
    bound = step_bound(view, given)
    problem = build_problem(view, given, Constraints())
    assert bound.seconds <= min(simulated(module, problem, x) for x in strategies(problem, seed)) * (1.0 + 1e-9)


def some_hosts(chance: random.Random) -> Cluster:
    """Hosts with NICs, some of which devices share, of a mesh with an axis inside a host, or across."""
    mesh = chance.choice([Mesh.of(node=2, gpu=2), Mesh.of(gpu=2, node=2), Mesh.of(gpu=4), Mesh.of(a=2, b=2, c=2)])
    inside = Level("wire", 1e-6, 10 ** chance.uniform(8, 11), shared=chance.random() < 0.3)
    levels = (inside, Level("nic", 10 ** chance.uniform(-7, -5), 10 ** chance.uniform(7, 10)))
    size = chance.choice([2, mesh.device_count])
    switch = Switch(1, 2.0) if chance.random() < 0.3 else None
    host = Host(size, "wire", "nic", nics=chance.choice([1, 2]), count=mesh.device_count // size)
    device = Device("a", (("float32", 10 ** chance.uniform(8, 10)),), 10 ** chance.uniform(8, 10), 1e12, 1e-7)
    around = Interference(1.0, chance.choice([1.0, 1.5, 0.7]))
    topology = Topology(levels, (host,), switch if host.count > 1 else None)
    return Cluster("hosts", mesh, (device,), (0,) * mesh.device_count, (), around, topology)


# Hosts of each order of two axes; the first seed has three axes and takes four times as long.
@pytest.mark.parametrize("seed", names_of(range(6), lambda seed: seed in (2, 4)))
def test_no_program_is_faster_on_hosts(seed: int) -> None:
    """The bound of the traffic of several groups of axes through one port is at most the simulated time."""
    module = module_of(STEP, "even")
    add_cluster(module, some_hosts(random.Random(seed)))
    ((view, given),) = step_views(module)
    bound = step_bound(view, given)
    problem = build_problem(view, given, Constraints())
    assert bound.seconds <= min(simulated(module, problem, x) for x in strategies(problem, seed)) * (1.0 + 1e-9)


def test_weights_and_terms_make_the_bound() -> None:
    """The seconds are the weighted sum of the terms, and no segment is weighed twice."""
    module = module_of(STEP, "even", 2)
    ((view, cluster),) = step_views(module)
    bound = step_bound(view, cluster)
    weighted = sum(weight * bound.by[name] for name, weight in bound.weights.items())
    assert bound.seconds == pytest.approx(weighted, rel=1e-3)
    spans = {name: tuple(map(int, name.rsplit(" ", 1)[1].split("-"))) for name in bound.weights}
    for segment in range(max(end for _, end in spans.values())):
        covering = [bound.weights[name] for name, (begin, end) in spans.items() if begin <= segment < end]
        assert sum(covering) <= 1.0 + 1e-9


def test_the_bound_is_the_same_again() -> None:
    """Limits count; nothing depends on time."""
    found = []
    for _ in range(2):
        ((view, cluster),) = step_views(module_of(STEP, "even", 2))
        found.append(step_bound(view, cluster))
    assert found[0] == found[1]


def test_interference_that_speeds_up_lowers_the_bound() -> None:
    """If compute is faster during communication, the bound uses the faster rate."""
    ((view, cluster),) = step_views(module_of(STEP, "even"))
    quick = replace(cluster, interference=Interference(compute=0.5))
    assert step_bound(view, quick).seconds == pytest.approx(0.5 * step_bound(view, cluster).seconds, rel=1e-6)


def test_enough_ends_it_early() -> None:
    """From some seconds on no better bound is looked for."""
    ((view, cluster),) = step_views(module_of(STEP, "even", 2))
    assert step_bound(view, cluster, enough=1e-9).solved == 1
