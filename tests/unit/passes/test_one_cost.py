"""The search, the choice of methods, buckets, shares and the simulator use the same seconds of a collective."""

import itertools
from collections.abc import Iterator
from typing import cast

import pytest
from ir_files import context, parse

from shardwright.dialects.compute import value_bytes
from shardwright.dialects.mesh_ops import MeshOp
from shardwright.dialects.spmd import CollectiveOp
from shardwright.dialects.step import sharding_of
from shardwright.ir.cluster import Algorithm, Cluster, Device, Link
from shardwright.ir.collective_cost import Method, bucket_bytes, methods_of
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh
from shardwright.ir.ratios import EVEN
from shardwright.ir.topology import Host, Level, Topology
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.durations import NO_COPIES, communication_of
from shardwright.passes.analysis.resharding import Pricing, ReshardCosts
from shardwright.passes.overlapping.timing import ComputeTimes
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.shares.phases import PhaseModel, Transmission

MESH = Mesh.of(node=2, gpu=2)
SENT = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
METHODS: tuple[Algorithm, ...] = ("padded", "grouped_broadcast", "hierarchical")


def curve(name: str, slowest: float) -> Iterator[tuple[str, float, float]]:
    """Yield times far from the linear costs of links; the curves of different methods cross."""
    for size, seconds in ((64.0, 1.0), (1024.0, 1.5), (65536.0, 40.0)):
        yield name, size, seconds * slowest ** (-1.0 if size > 64 else 1.0)


def link(axes: str) -> Link:
    """Return a link with a separate curve for each collective and method."""
    names = [*SENT, *(f"{kind}:{method}" for kind in SENT for method in METHODS)]
    points = (point for at, name in enumerate(names) for point in curve(name, 1.01 + 0.1 * at + 0.01 * len(axes)))
    return Link(axes, 1e-5, 1e-9, points=tuple(points))


HOSTS = Topology((Level("inside", 1e-5, 1e8), Level("nic", 1e-4, 1e6)), (Host(2, "inside", "nic", count=2),))
DEVICE = Device("d", (("float32", 1e12),), 1e11, 1e9)
CLUSTER = Cluster("c", MESH, (DEVICE,), (0,) * 4, tuple(map(link, ("node", "gpu", "node-gpu"))), topology=HOSTS)
CHANGES = [
    ('[{}, {}], unreduced={"node", "gpu"}', "[{}, {}]"),
    ('[{}, {}], unreduced={"gpu"}', "[{}, {}]"),
    ('[{}, {}], unreduced={"node"}', '[{"node"}, {}]'),
    ('[{}, {}], unreduced={"gpu"}', '[{"gpu"}, {}], offsets={0: [0, 3, 8]}'),
    ('[{"node", "gpu"}, {}]', "[{}, {}]"),
    ('[{"gpu"}, {}], offsets={0: [0, 5, 8]}', "[{}, {}]"),
    ('[{"node", "gpu"}, {}], offsets={0: [0, 7, 7, 7, 8]}', "[{}, {}]"),
    ('[{"gpu"}, {}]', '[{}, {"gpu"}]'),
    ('[{"gpu"}, {}], offsets={0: [0, 5, 8]}', '[{}, {"gpu"}]'),
    ('[{"gpu"}, {}], offsets={0: [0, 5, 8]}', '[{"gpu"}, {}]'),
]


def collective(source: str, target: str, width: int, method: str = "auto") -> CollectiveOp:
    """Return the collective that `select-collectives` makes for a resharding of a value of 8 times `width` elements."""
    kind, at = f"tensor<8x{width}xf32>", "#spmd.sharding<@mesh, "
    module = parse(
        f"""
        spmd.mesh @mesh = <["node"=2, "gpu"=2]>
        func.func @step(%x: {kind} {{spmd.sharding = {at}{source}>}}) -> ({kind} {{spmd.sharding = {at}{target}>}}) {{
          %y = spmd.reshard %x to <@mesh, {target}> : {kind}
          func.return %y : {kind}
        }}""",
        context(),
    )
    next(op for op in module.ops if isinstance(op, MeshOp)).detach()
    add_cluster(module, CLUSTER)
    run_pipeline(context(), module, f"select-collectives{{method={method}}}")
    return next(op for op in module.walk() if isinstance(op, CollectiveOp))


UNEVEN = '[{"gpu"}, {}], offsets={0: [0, 5, 8]}'
ROWS, COLUMNS, WHOLE, PARTIAL = '[{"gpu"}, {}]', '[{}, {"gpu"}]', "[{}, {}]", '[{}, {}], unreduced={"gpu"}'


@pytest.mark.parametrize(
    ("source", "target", "method", "packed", "joined"),
    [
        (ROWS, WHOLE, "auto", 0, 0),
        (COLUMNS, WHOLE, "auto", 0, 1),
        (UNEVEN, WHOLE, "padded", 0, 1),
        (UNEVEN, WHOLE, "grouped_broadcast", 0, 0),
        (PARTIAL, ROWS, "auto", 0, 0),
        (PARTIAL, COLUMNS, "auto", 1, 0),
        (PARTIAL, UNEVEN, "padded", 1, 0),
        (PARTIAL, UNEVEN, "grouped_broadcast", 2, 0),
    ],
)
def test_copies_of_whole_values_are_counted_with_their_kernels(
    source: str, target: str, method: str, packed: int, joined: int
):
    """A copy reads and writes the whole value of 8 x 16 floats, in a kernel for each message."""
    work = communication_of(collective(source, target, 16, method), MESH)
    both_ways = 2 * 8 * 16 * 4
    assert work.packed == ((both_ways, packed) if packed else NO_COPIES)
    assert work.joined == ((both_ways, joined) if joined else NO_COPIES)


@pytest.mark.parametrize("width", [2, 16, 64, 2048, 65536])
@pytest.mark.parametrize(("source", "target"), CHANGES, ids=lambda text: str(text))
def test_search_choice_and_simulator_agree(source: str, target: str, width: int):
    op = collective(source, target, width)
    step, size = op.step(sharding_of(op.operand), MESH), float(value_bytes(op.operand))
    chosen = communication_of(op, MESH)
    searched = ReshardCosts(CLUSTER).step_seconds(step, size) - 1e-9
    assert chosen.seconds(CLUSTER) == pytest.approx(searched, rel=1e-9)
    if len(methods := methods_of(CLUSTER, step)) > 1:
        forced = {method: communication_of(collective(source, target, width, method), MESH) for method in methods[1:]}
        others = [each.seconds(CLUSTER) for method, each in forced.items() if each.method == method]
        assert chosen.seconds(CLUSTER) <= min(others)
    assert chosen.method in (*methods, "padded")


def test_every_kind_and_method_is_covered():
    pairs = itertools.product(CHANGES, (2, 16, 64, 2048))
    chosen = [communication_of(collective(*change, width), MESH) for change, width in pairs]
    methods = {(each.kind.value, each.method) for each in chosen}
    assert {kind for kind, _ in methods} == set(SENT)
    assert {method for _, method in methods} == {"flat", *METHODS}


def test_balancing_of_shares_uses_the_same_seconds():
    source, target = '[{"gpu"}, {}]', "[{}, {}]"
    op = collective(source, target, 16)
    step = op.step(sharding_of(op.operand), MESH)
    model = PhaseModel((Transmission(step, float(value_bytes(op.operand)), 0),), CLUSTER)
    assert model.seconds({0: EVEN}) == pytest.approx(communication_of(op, MESH).seconds(CLUSTER))


@pytest.mark.parametrize("axes", [("node",), ("gpu",), ("node", "gpu")], ids="-".join)
@pytest.mark.parametrize("kind", [CollectiveKind(kind) for kind in SENT])
def test_a_bucket_is_priced_as_it_is_filled(kind: CollectiveKind, axes: tuple[str, ...]):
    size = ComputeTimes([], CLUSTER, None).bucket_bytes(kind, axes)
    time = CLUSTER.collective_time(kind, axes)
    assert size == bucket_bytes(CLUSTER, kind, axes)
    assert CLUSTER.collective_seconds(kind, axes, size) / size == pytest.approx(9 / 8 * time.least_per_byte)


def test_the_method_in_a_bucket_is_the_cheapest_for_a_full_bucket():
    source, target = CHANGES[5]
    op = collective(source, target, 16)
    step, size = op.step(sharding_of(op.operand), MESH), float(value_bytes(op.operand))
    bucket = bucket_bytes(CLUSTER, step.kind, step.axes)
    shares = {"padded": 2 * 5 / 8, "grouped_broadcast": 1.0}
    marginal = [
        CLUSTER.collective_seconds(step.kind, step.axes, bucket, cast(Method, method)) / bucket * share * size
        for method, share in shares.items()
    ]
    assert ReshardCosts(CLUSTER, Pricing(bucketed=True)).prices.seconds(step, size) == pytest.approx(min(marginal))
