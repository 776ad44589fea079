"""Resharding: the table of costs equals the costs of the paths, and the paths are shortest."""

import itertools
import math
from dataclasses import replace

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.collectives import CollectiveKind, find_step, steps_from
from shardwright.ir.mesh import Mesh
from shardwright.ir.sharding import Sharding, parse_sharding
from shardwright.passes.analysis.resharding import DETOUR, Pricing, ReshardCosts, even_shardings, fits

MESH = Mesh.of(node=2, gpu=2)


def costs_with(fixed: float, per_byte: float) -> ReshardCosts:
    """Return costs on two nodes of two devices, with these costs of an all-to-all inside a node."""
    device = Device("cpu", (("float32", 1e9),), memory_bandwidth=1e9, memory=1e9)
    links = (Link("node", 1e-5, 1e-8), Link("gpu", 1e-6, 1e-9, (("all_to_all", fixed, per_byte),)))
    return ReshardCosts(Cluster("test", MESH, (device,), (0, 0, 0, 0), links))


COSTS = costs_with(3e-6, 2e-9)
EXCHANGING = costs_with(1e-9, 1e-12)
SHAPE = (6, 3)
UNEVEN = tuple(
    map(
        parse_sharding,
        [
            '[{"gpu"}, {}], offsets={0: [0, 1, 6]}',
            '[{}, {"gpu"}], offsets={1: [0, 3, 3]}',
            '[{"node", "gpu"}, {}], offsets={0: [0, 0, 2, 3, 6]}',
            '[{"gpu"}, {}], unreduced={"node"}, offsets={0: [0, 5, 6]}',
        ],
    )
)
EVEN = tuple(each for each in even_shardings(2, MESH) if fits(each, SHAPE, MESH))
ALL = (*EVEN, *UNEVEN)


def seconds(costs: ReshardCosts, source: Sharding, target: Sharding, element_bytes: int) -> float:
    """Return the seconds of the path from one sharding to the other."""
    size = math.prod(SHAPE) * element_bytes
    return sum(costs.step_seconds(step, size) for step in costs.path(SHAPE, element_bytes, source, target))


def test_even_shardings_are_complete():
    assert len(set(even_shardings(2, MESH))) == 4**2
    assert len(set(even_shardings(2, MESH, partial=False))) == 3**2
    assert even_shardings(2, MESH)[0].is_replicated


def test_a_split_needs_an_element_for_each_part():
    assert not fits(parse_sharding('[{}, {"node", "gpu"}]'), SHAPE, MESH)
    assert fits(parse_sharding('[{}, {"node", "gpu"}], offsets={1: [0, 0, 1, 2, 3]}'), SHAPE, MESH)


UNEVEN_TWICE = tuple(
    map(
        parse_sharding,
        [
            '[{"gpu"}, {"node"}], offsets={0: [0, 1, 6], 1: [0, 1, 3]}',
            '[{"node"}, {"gpu"}], offsets={0: [0, 4, 6], 1: [0, 3, 3]}',
        ],
    )
)
"""Shardings whose dims have offsets from different shares of the devices."""


@pytest.mark.parametrize("source", [*ALL, *UNEVEN_TWICE], ids=str)
def test_a_path_consists_of_valid_steps(source: Sharding):
    for target in (*ALL, *UNEVEN_TWICE):
        at = source
        for step in COSTS.path(SHAPE, 4, source, target):
            assert step.source == at
            assert find_step(step.kind, step.source, step.target, MESH) == step
            step.target.verify(MESH, SHAPE)
            at = step.target
        assert at == target


@pytest.mark.parametrize("costs", [COSTS, EXCHANGING], ids=["gathering", "exchanging"])
@pytest.mark.parametrize("element_bytes", [1, 8, 100_000])
def test_the_table_holds_the_times_of_the_paths(costs: ReshardCosts, element_bytes: int):
    table = costs.matrix(SHAPE, element_bytes, ALL, ALL)
    paths = [[seconds(costs, source, target, element_bytes) for target in ALL] for source in ALL]
    np.testing.assert_allclose(table, paths, rtol=1e-12)


@settings(max_examples=25)
@given(st.lists(st.sampled_from(ALL), min_size=1), st.lists(st.sampled_from(ALL), min_size=1))
def test_a_part_of_the_table_is_the_same(sources: list[Sharding], targets: list[Sharding]):
    whole = COSTS.matrix(SHAPE, 4, ALL, ALL)
    rows, columns = [ALL.index(each) for each in sources], [ALL.index(each) for each in targets]
    np.testing.assert_allclose(COSTS.matrix(SHAPE, 4, sources, targets), whole[np.ix_(rows, columns)])


@pytest.mark.parametrize("pricing", [Pricing(), Pricing(latency_free=True)], ids=["alone", "bound"])
@pytest.mark.parametrize("element_bytes", [1, 100_000])
def test_no_other_path_is_much_shorter(element_bytes: int, pricing: Pricing):
    costs, worth = ReshardCosts(COSTS.cluster, pricing), 0.0 if pricing.latency_free else DETOUR
    graph: networkx.DiGraph[Sharding] = networkx.DiGraph()
    size = math.prod(SHAPE) * element_bytes
    for source in EVEN:
        for step in steps_from(source, MESH):
            if step.target in EVEN:
                known = graph.get_edge_data(source, step.target, {"weight": math.inf})["weight"]
                graph.add_edge(source, step.target, weight=min(known, costs.step_seconds(step, size)))
    shortest = dict(networkx.all_pairs_dijkstra_path_length(graph))
    expected = np.array([[shortest[source][target] for target in EVEN] for source in EVEN])
    table = costs.matrix(SHAPE, element_bytes, EVEN, EVEN)
    assert (table >= expected * (1 - 1e-12)).all()
    assert ((1 - worth) * table <= expected * (1 + 1e-12)).all()


@pytest.mark.parametrize("slower", [1.05, 1.2])
def test_an_all_reduce_becomes_two_collectives_if_that_saves_a_tenth(slower: float):
    """Measurements of an all-reduce and of its two halves differ by noise."""
    halves = (("all_gather", 1e-6, 1e-9), ("reduce_scatter", 1e-6, 1e-9))
    link = Link("gpu", 1e-6, 1e-9, (*halves, ("all_reduce", slower * 2e-6, slower * 1e-9)))
    cluster = Cluster("measured", Mesh.of(gpu=4), COSTS.cluster.devices, (0,) * 4, (link,))
    sums, whole = parse_sharding('[{}], unreduced={"gpu"}'), Sharding.replicated(1)
    steps = ReshardCosts(cluster).path((2**10,), 4, sums, whole)
    assert len(steps) == (1 if slower < 1.1 else 2)


def test_only_the_same_sharding_costs_nothing():
    table = COSTS.matrix(SHAPE, 4, ALL, ALL)
    assert (np.diagonal(table) == 0).all()
    assert (table[~np.eye(len(ALL), dtype=bool)] > 0).all()


def test_between_slow_nodes_a_large_sum_is_scattered_first():
    sums, whole = parse_sharding('[{}], unreduced={"node", "gpu"}'), Sharding.replicated(1)
    steps = COSTS.path((2**20,), 4, sums, whole)
    assert [(step.kind, step.axes) for step in steps] == [
        (CollectiveKind.REDUCE_SCATTER, ("gpu",)),
        (CollectiveKind.ALL_REDUCE, ("node",)),
        (CollectiveKind.ALL_GATHER, ("gpu",)),
    ]


def test_an_impossible_change_is_an_error():
    scalar = Sharding.replicated(0)
    maximum = parse_sharding('[], unreduced={"gpu" max}')
    assert COSTS.path((), 4, maximum, scalar)
    with pytest.raises(ValueError, match=r"no collectives convert \[\] to \[\], unreduced={\"gpu\" max}"):
        COSTS.path((), 4, scalar, maximum)
    assert COSTS.matrix((), 4, [scalar], [maximum])[0, 0] == math.inf


def test_single_pairs_equal_the_table_of_all_pairs():
    first = COSTS.matrix(SHAPE, 4, EVEN, EVEN)
    for source, target in itertools.islice(itertools.product(EVEN, EVEN), 20):
        assert COSTS.matrix(SHAPE, 4, [source], [target])[0, 0] == first[EVEN.index(source), EVEN.index(target)]


WEIGHTS = Pricing(weights=((("gpu",), 0.25), ((), 3.0)), weight=0.5)


@pytest.mark.parametrize(
    "pricing", [WEIGHTS, replace(WEIGHTS, bucketed=True), replace(WEIGHTS, latency_free=True)], ids=str
)
def test_the_cost_of_a_change_is_the_weighted_sum_of_its_streams(pricing: Pricing):
    costs = ReshardCosts(COSTS.cluster, pricing)
    table = costs.matrix(SHAPE, 1000, ALL, ALL)
    for (i, source), (j, target) in itertools.product(enumerate(ALL), repeat=2):
        streams = costs.streams(SHAPE, 1000, source, target)
        steps = len(costs.path(SHAPE, 1000, source, target))
        assert sum(pricing.factor(axes) * each for axes, each in streams.items()) + 1e-9 * steps == pytest.approx(
            table[i, j], rel=1e-9
        )


def test_latency_free_prices_are_below_bucketed_ones_and_these_below_single_ones():
    bound, shared, alone = (
        ReshardCosts(COSTS.cluster, pricing).matrix(SHAPE, 10, EVEN, EVEN)
        for pricing in (Pricing(latency_free=True), Pricing(bucketed=True), Pricing())
    )
    for less, more in ((bound, shared), (shared, alone)):
        assert (less <= more + 1e-15).all()
        assert (less < more).any()


def test_bytes_in_a_bucket_cost_an_eighth_more():
    step = find_step(CollectiveKind.ALL_REDUCE, parse_sharding('[{}], unreduced={"gpu"}'), Sharding.replicated(1), MESH)
    assert step is not None
    bound, shared = (
        ReshardCosts(COSTS.cluster, pricing).prices.seconds(step, 1000.0)
        for pricing in (Pricing(latency_free=True), Pricing(bucketed=True))
    )
    assert bound == pytest.approx(1e-9 * 1000)
    assert shared == pytest.approx(9 / 8 * bound)


def test_kinds_of_prices_exclude_each_other():
    with pytest.raises(ValueError, match="exclude each other"):
        Pricing(bucketed=True, latency_free=True)


@pytest.mark.parametrize("side", [4, 8])
def test_a_2_5_d_product_communicates_each_matrix_once(side: int):
    # C = A B on a cube, with an axis for each of the three factors. Each matrix is stored once, in p = side^3 parts.
    # A device needs n^2 / side^2 of each and receives (side - 1) / side of that, three times (AutoDDL 4.1).
    size, beta = 1024, 1e-9
    mesh = Mesh.of(i=side, j=side, k=side)
    device = Device("gpu", (("float32", 1e12),), memory_bandwidth=1e12, memory=1e11)
    links = tuple(Link(name, 0.0, beta) for name in mesh.names)
    costs = ReshardCosts(Cluster("cube", mesh, (device,), (0,) * side**3, links))
    homes = [each for each in even_shardings(2, mesh, partial=False) if len(each.split_axes) == 3]
    taken = ['[{"i"}, {"k"}]', '[{"k"}, {"j"}]']
    made = parse_sharding('[{"i"}, {"j"}], unreduced={"k"}')

    ways = [costs.matrix((size, size), 4, homes, [parse_sharding(form)]).min() for form in taken]
    ways.append(costs.matrix((size, size), 4, [made], homes).min())

    assert sum(ways) == pytest.approx(3 * (side - 1) / side * 4 * size**2 / side**2 * beta, rel=1e-4)
