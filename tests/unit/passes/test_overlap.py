"""Overlap on whole models: equal results, fewer collectives, less time, and bounded memory."""

import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from launches import covering, names_of
from split_cluster import split_cluster
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from shardwright.api.compile import import_training_step
from shardwright.dialects.compute import SIGNATURE, ComputeOp
from shardwright.dialects.mesh_ops import ClusterOp, MeshOp
from shardwright.dialects.sharding_attrs import SignatureAttr
from shardwright.dialects.spmd import CollectiveOp, StartOp, WaitOp
from shardwright.ir.cluster import Cluster, Link
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh, parse_mesh
from shardwright.ir.signatures import signatures
from shardwright.lowering.interpreter.verify_numerics import check_pass
from shardwright.models.mlp import mlp_step
from shardwright.models.registry import training_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.memory import peak_memory
from shardwright.passes.analysis.simulation.timeline import predict
from shardwright.passes.pipeline import Pipeline, run_pipeline
from shardwright.passes.search_strategy import SearchStrategyPass
from shardwright.passes.step.step_view import cluster_of_module, step_functions

MIB = 2**20
OPTIONS = [
    "",
    "{bucket_mb=0}",
    "{bucket_mb=0.002 prefetch=2}",
    "{prefetch=0 gradients=false}",
    "{gathers=false activations=false}",
    "{bucket_mb=0.002 in_flight=1}",
    "{bucket_mb=0.002 memory=1}",
]


@cache
def shipped(model: str) -> ModuleOp:
    return import_training_step(training_step(model))


def imported(model: str, cluster: Cluster) -> ModuleOp:
    """Return a shipped model's step on a cluster."""
    module = shipped(model).clone()
    block = module.body.block
    assert block.first_op is not None
    block.insert_ops_before([MeshOp(cluster.mesh), ClusterOp(cluster)], block.first_op)
    return module


def planned(model: str, cluster: Cluster, preset: str) -> ModuleOp:
    """Return a shipped model's step with collectives, pinned to a preset."""
    module = imported(model, cluster)
    run_pipeline(Context(), module, f"prepare,add-pins{{pins={preset}}},search-strategy{{algorithm=fixed}},communicate")
    return module


def overlapped(module: ModuleOp, options: str = "") -> ModuleOp:
    """Return a copy of `module` after the pass."""
    after = module.clone()
    run_pipeline(Context(), after, f"overlap{options}")
    return after


def step_of(module: ModuleOp) -> FuncOp:
    """Return the step function of `module`."""
    return step_functions(module)[0]


def communications(module: ModuleOp) -> Counter[str]:
    """Return the number of collectives of each kind; a bucket counts once."""
    counts: Counter[str] = Counter()
    for op in step_of(module).body.block.ops:
        if isinstance(op, StartOp):
            counts[op.collective] += 1
        elif isinstance(op, CollectiveOp) and not op.KIND.is_local:
            counts[op.KIND] += 1
    return counts


@pytest.mark.parametrize(("preset", "options"), covering(["dp", "tp", "zero3"], OPTIONS))
def test_results_stay_equal(preset: str, options: str):
    before = planned("mlp-tiny", split_cluster(parse_mesh("dp=2,tp=2")), preset)
    check_pass(before, overlapped(before, options), "overlap")


@pytest.mark.parametrize("seed", names_of(range(8), lambda seed: seed < 4))
def test_results_stay_equal_under_any_strategy(seed: int):
    mesh = parse_mesh("dp=2,tp=2")
    before = imported("mlp-tiny", split_cluster(mesh))
    choose_at_random(before, mesh, seed)
    run_pipeline(Context(), before, "communicate")
    check_pass(before, overlapped(before, OPTIONS[seed % 3]), "overlap")


def choose_at_random(module: ModuleOp, mesh: Mesh, seed: int) -> None:
    """Give every op one of its signatures."""
    choose = random.Random(seed)
    for op in step_of(module).body.block.ops:
        if isinstance(op, ComputeOp):
            op.attributes[SIGNATURE] = SignatureAttr.of(mesh.name, choose.choice(signatures(op.rule(), mesh)))


def test_data_parallel_gradients_are_reduced_in_few_buckets():
    before = planned("gpt2-tiny", find_cluster("local-4"), "dp")
    assert communications(before)["all_reduce"] == 38
    # One for the count of labels, one for the loss with all gradients.
    assert communications(overlapped(before))["all_reduce"] == 2
    # There are 118 KB of gradients; the token embedding alone has 13 KB.
    assert 3 <= communications(overlapped(before, "{bucket_mb=0.06}"))["all_reduce"] <= 6


@pytest.mark.parametrize("preset", ["dp", "tp", "zero3"])
def test_the_predicted_time_falls_and_memory_stays(preset: str):
    before = planned("gpt2-tiny", find_cluster("local-4"), preset)
    cluster = cluster_of_module(before)
    after = overlapped(before, "{bucket_mb=0.02}")
    slow, fast = (predict(step_of(module), cluster) for module in (before, after))
    assert fast.seconds < slow.seconds
    assert fast.exposed_seconds < slow.exposed_seconds
    # Values that forward still holds are not gathered again.
    assert fast.collective_bytes.keys() == slow.collective_bytes.keys()
    assert all(sent <= slow.collective_bytes[kind] * (1 + 1e-9) for kind, sent in fast.collective_bytes.items())
    most, now = (peak_memory(step_of(module), cluster.mesh).bytes for module in (before, after))
    # Two buckets of gathered blocks; the larger has the token embedding.
    assert now <= most + 2 * 0.06 * MIB


def reductions_in_flight(module: ModuleOp) -> int:
    """Return the largest number of reduce-scatters in flight."""
    pending, most = set[Operation](), 0
    for op in step_of(module).body.block.ops:
        if isinstance(op, StartOp) and op.collective is CollectiveKind.REDUCE_SCATTER:
            pending.add(op)
        elif isinstance(op, WaitOp):
            pending.discard(op.start)
        most = max(most, len(pending))
    return most


@pytest.mark.parametrize("most", [1, 2])
def test_reductions_in_flight_are_limited(most: int):
    before = planned("gpt2-tiny", find_cluster("hidup-2x4-10g"), "zero3")
    assert reductions_in_flight(overlapped(before, "{bucket_mb=0.001}")) > most
    assert reductions_in_flight(overlapped(before, f"{{bucket_mb=0.001 in_flight={most}}}")) == most


def test_less_is_in_flight_if_memory_is_short():
    before = planned("gpt2-tiny", find_cluster("hidup-2x4-10g"), "zero3")
    cluster = cluster_of_module(before)

    def peak(options: str) -> int:
        return peak_memory(step_of(overlapped(before, options)), cluster.mesh).bytes

    def in_flight(memory: int) -> int:
        return reductions_in_flight(overlapped(before, f"{{bucket_mb=0.02 memory={memory}}}"))

    ample = peak("{bucket_mb=0.02}")
    least = peak("{bucket_mb=0.02 memory=1}")
    assert least < ample
    between = (least + ample) // 2
    assert peak(f"{{bucket_mb=0.02 memory={between}}}") <= between
    assert in_flight(1) < in_flight(between) < in_flight(ample)


def test_a_second_run_changes_nothing():
    once = overlapped(planned("mlp-tiny", find_cluster("local-4"), "dp"))
    assert str(overlapped(once)) == str(once)


def test_a_bucket_over_fast_links_does_not_delay_its_reductions_over_slow_links():
    """With ZeRO-1 inside hosts, gradients are scattered over `gpu` and then reduced over `node`."""
    mesh = Mesh.of(node=2, gpu=4)
    links = (Link("node", 1e-6, 1e-8), Link("gpu", 1e-4, 1e-12))
    module = import_training_step(mlp_step((64,) * 9, batch=64))
    add_cluster(module, replace(split_cluster(mesh), links=links))
    pins = "[[pin]]\npreset='dp'\naxes=['node']\n[[pin]]\npreset='zero1'\naxes=['gpu']"
    run_pipeline(Context(), module, "prepare")
    run_pipeline(Context(), module, Pipeline.of(SearchStrategyPass("fixed", pins=pins)))
    run_pipeline(Context(), module, "communicate,overlap")
    starts = [op for op in step_of(module).body.block.ops if isinstance(op, StartOp)]
    kinds = [op.collective for op in starts]
    assert kinds.count(CollectiveKind.REDUCE_SCATTER) > 2
    last = len(kinds) - 1 - kinds[::-1].index(CollectiveKind.REDUCE_SCATTER)
    assert kinds.index(CollectiveKind.ALL_REDUCE) < last
