"""AMP's search space, its cuts into stages, and unrestricted plans for the same clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from _plain_plans import divisors
from amp_plans import RANKS, Setup, Testbed, Workload, imported, planned
from xdsl.context import Context

from shardwright.api.compile import PlanOptions
from shardwright.ir.cluster import Cluster, Device
from shardwright.ir.op_rate import OpRate
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.memory import MemoryPeak, peak_memory
from shardwright.passes.analysis.memory_roles import MemoryRole
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.planning.summary import PlanSummary, read_plan
from shardwright.passes.stages.partition import partition
from shardwright.passes.stages.stage_costs import StageCosts
from shardwright.passes.step.layers import find_layers
from shardwright.passes.step.step_view import step_functions, step_views

KEPT_WHOLE = frozenset({MemoryRole.PARAMETERS, MemoryRole.STATES, MemoryRole.GRADIENTS})
"""Roles that take sixteen bytes per parameter together, in float32 as in mixed precision."""


def degrees_of(workload: Workload) -> Iterator[tuple[tuple[Setup, ...], ...]]:
    """
    Yield all degrees that AMP enumerates, as setups that are not cut into stages.

    The order is by tensor parallelism, which stays inside hosts, then by data parallelism, then by micro-batch size.
    """
    for tensor in divisors(4):
        by_data = ((data, divisors(workload.batch // data)) for data in divisors(RANKS // tensor))
        yield tuple(tuple(Setup(workload, size, tensor, data, (0,)) for size in sizes) for data, sizes in by_data)


def cut(setup: Setup, testbed: Testbed) -> Setup:
    """Return the setup with as many stages as fill all ranks, cut as `partition-stages` cuts them."""
    workload, pipe = setup.workload, RANKS // (setup.tensor * setup.data)
    if pipe == 1:
        return setup
    cluster = in_float32(testbed.cluster(replace(setup, begins=(0,) * pipe).axes))
    module = imported(workload, written_out=workload.written_out).clone()
    add_cluster(module, cluster)
    ((view, _),) = step_views(module)
    layers = find_layers(view)
    counts = (RANKS // pipe,) * pipe
    costs = StageCosts(view, layers, cluster, counts, setup.parts)
    best = partition(len(layers.names), pipe, setup.parts, costs.compute, costs.communicate)
    return replace(setup, begins=best.bounds[:-1])


def in_float32(cluster: Cluster) -> Cluster:
    """
    Return a cluster that runs a float32 program in the time that `cluster` takes in half precision.

    Wires and memory get twice the rate, since float32 has twice the bytes. Updates are in float32 on both clusters.
    """
    topology = cluster.topology
    assert topology is not None
    levels = tuple(replace(level, bandwidth=2 * level.bandwidth) for level in topology.levels)
    kinds = tuple(map(_in_float32, cluster.devices))
    return replace(cluster, devices=kinds, topology=replace(topology, levels=levels))


def _in_float32(device: Device) -> Device:
    (flops,) = (rate for _, rate in device.flops)
    rates = tuple(replace(rate, dtype="", bandwidth=2 * rate.bandwidth) for rate in device.rates)
    update = OpRate("update", "", flops, device.memory_bandwidth, device.launch)
    bandwidth = 2 * device.memory_bandwidth
    return replace(device, flops=(("float32", flops),), memory_bandwidth=bandwidth, rates=(*rates, update))


@cache
def peak_bytes(setup: Setup) -> float:
    """
    Return the peak memory of a rank in half precision, with written out scores of attention as in AMP's runtime.

    The float32 program is analysed, and its activations are halved.
    """
    module = planned(setup, written_out=True)
    return max(
        _halved(peak_memory(view.func, cluster.mesh, stage=view.stage, blocks=cluster.blocks))
        for view, cluster in step_views(module)
    )


def _halved(peak: MemoryPeak) -> float:
    return sum(size if role in KEPT_WHOLE else size / 2 for role, size in peak.by_role.items())


def searched_plan(workload: Workload, testbed: Testbed, budget: float | None) -> PlanSummary:
    """Run `search-plan` on the float32 program, for at most `budget` seconds if that is given."""
    cluster = in_float32(testbed.cluster({"node": 4, "gpu": 4}))
    module = imported(workload).clone()
    add_cluster(module, cluster)
    run_pipeline(Context(), module, PlanOptions(budget=budget).passes(cluster), verify_each=False)
    (func,) = step_functions(module)
    plan = read_plan(func)
    assert plan is not None
    return plan
