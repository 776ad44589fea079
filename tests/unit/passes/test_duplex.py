"""Duplex of two and three parts, in both orders: equality with one device, time and memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import time_steps
import torch
from ir_files import context
from launches import covering
from split_cluster import split_cluster
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.check import check_interpreted
from shardwright.api.compile import import_training_step
from shardwright.api.training_step import TrainingStep
from shardwright.dialects.placed import parts_of
from shardwright.dialects.spmd import AccumulateOp, StartOp
from shardwright.ir.cluster_file import parse_cluster, shipped_clusters
from shardwright.ir.mesh import parse_mesh
from shardwright.models.mlp import mlp_step
from shardwright.models.registry import training_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.memory import peak_memory
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.errors import PassError
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import step_views

BEGIN = "prepare,search-strategy{algorithm=fixed pins=tp}"
END = "overlap,join-updates,finish"


def mlp() -> TrainingStep:
    return mlp_step((20, 24, 24, 10), batch=12)


def cnn() -> TrainingStep:
    """Return a step of VGG."""
    return training_step("vgg13-tiny")


STEPS: dict[str, Callable[[], TrainingStep]] = {"mlp": mlp, "gpt": time_steps.gpt2, "cnn": cnn}


def pipeline(parts: int, order: str, end: str = END) -> str:
    split = f"split-batch{{parts={parts} unrolled=true}},communicate"
    return f"{BEGIN},{split},duplex{{order={order}}},{end}"


@pytest.mark.parametrize(("model", "parts", "order"), covering(STEPS, [2, 3], ["phases", "list"], every=3))
def test_copies_train_as_the_whole_batch(model: str, parts: int, order: str):
    # Alternate the precisions over numbers of parts and orders.
    dtype = torch.float32 if (parts == 2) == (order == "list") else torch.float64
    mesh = parse_mesh("2")
    case = CheckCase(STEPS[model], mesh, None, dtype, "sgd", 2, split_cluster(mesh), pipeline=pipeline(parts, order))
    result = check_interpreted(case, 1e-5 if dtype is torch.float32 else 1e-10)
    assert result.passed, str(result)


@cache
def sharded(cluster: str, parts: int) -> ModuleOp:
    """Return a GPT split into parts, before `duplex` orders its copies."""
    module = import_training_step(time_steps.gpt2())
    add_cluster(module, parse_cluster(shipped_clusters()[cluster]))
    run_pipeline(context(), module, pipeline(parts, "phases", "").partition(",duplex")[0])
    return module


def ordered(cluster: str, parts: int, order: str) -> tuple[ModuleOp, float, int]:
    """Return the program in an order, its simulated seconds and its peak memory."""
    module = sharded(cluster, parts).clone()
    run_pipeline(context(), module, f"duplex{{order={order}}},overlap,join-updates")
    ((view, found),) = step_views(module)
    peak = peak_memory(view.func, found.mesh, blocks=found.blocks).bytes
    return module, simulate_module(module)[0].seconds, peak


@pytest.mark.parametrize("parts", [2, *(pytest.param(parts, marks=pytest.mark.thorough) for parts in (3, 4))])
@pytest.mark.parametrize("cluster", ["hidup-2x4-10g", pytest.param("hidup-2x4-100g", marks=pytest.mark.thorough)])
def test_the_best_order_is_the_fastest_and_needs_little_more_memory(cluster: str, parts: int):
    _, phases, held = ordered(cluster, parts, "phases")
    _, listed, held_listed = ordered(cluster, parts, "list")
    _, best, held_best = ordered(cluster, parts, "best")
    assert best == min(phases, listed)
    assert max(held_listed, held_best) <= 1.05 * held


def test_a_list_order_overlaps_links_within_and_between_hosts():
    # Phases have one communication at a time; list orders use links within and between hosts at the same time.
    (_, phases, _), (_, listed, _) = (ordered("hidup-2x4-10g", 2, order) for order in ("phases", "list"))
    assert listed < 0.9 * phases


def test_every_copy_communicates_and_sums_are_accumulated():
    module, _, _ = ordered("hidup-2x4-10g", 3, "list")
    (func,) = (view.func for view, _ in step_views(module))
    starts = [parts_of(op).get("micro") for op in func.walk() if isinstance(op, StartOp)]
    assert starts.count(0) == starts.count(1) == starts.count(2) > 0
    sums = [op for op in func.walk() if isinstance(op, AccumulateOp)]
    complete = [op for op in sums if "micro" not in op.out_sharding.sharding.partial_axes]
    assert len(sums) == 2 * len(complete)


def test_a_list_order_needs_a_cluster():
    module = sharded("hidup-2x4-10g", 2).clone()
    for op in list(module.ops):
        if op.name == "spmd.cluster":
            op.detach()
    with pytest.raises(PassError, match=r"no spmd\.cluster"):
        run_pipeline(context(), module, "duplex{order=list}")
    run_pipeline(context(), module, "duplex")
