"""Stages of two chunks: how layers are divided among them, and that plans have them where a step is shorter."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
from ir_files import context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import import_training_step
from shardwright.dialects.pipe import FragmentOp, TransferOp
from shardwright.dialects.stage_program import schedule_of
from shardwright.dialects.text import module_text
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.models.unet import UNetConfig, unet_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.simulation.simulate import simulate_module
from shardwright.passes.partition_stages import PartitionStagesPass
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.planning.candidate_compiler import CandidateCompiler
from shardwright.passes.planning.candidates import Candidate, Layout, preset
from shardwright.passes.planning.layouts import pipelines
from shardwright.passes.planning.records import Chosen
from shardwright.passes.schedule_pipeline import SchedulePipelinePass
from shardwright.passes.search_plan import SearchPlanPass
from shardwright.passes.stages import chunk_bounds
from shardwright.passes.stages.chunk_bounds import best_chunks, rounds, seconds_of_chunks
from shardwright.passes.stages.estimate import in_flight
from shardwright.passes.stages.schedules import FragmentKind, Work
from shardwright.passes.stages.stage_costs import LayerWork, StageCosts
from shardwright.passes.step.layers import find_layers
from shardwright.passes.step.step_view import StepView, step_functions

SLOW, FAST = 1e-7, 1e-13
"""Seconds a byte takes over the link."""


def cluster(beta: float, ranks: int = 2) -> Cluster:
    device = Device("d", (("float32", 1e10),), 1e12, 1e12, 1e-6)
    return Cluster("c", Mesh.of(gpu=ranks), (device,), (0,) * ranks, (Link("gpu", 1e-6, beta),))


@cache
def _unet() -> ModuleOp:
    module = import_training_step(unet_step(UNetConfig(widths=(8, 16, 32), image=16, attention=1), batch=16))
    run_pipeline(context(), module, "prepare")
    return module


def unet(where: Cluster) -> ModuleOp:
    module = _unet().clone()
    add_cluster(module, where)
    return module


def costs(where: Cluster, chunks: int) -> StageCosts:
    (func,) = step_functions(unet(where))
    view = StepView(func, where.mesh)
    return StageCosts(LayerWork(view, find_layers(view)), where, (1,) * where.mesh.device_count, 8, chunks)


def test_both_ends_of_skip_connections_are_on_one_stage():
    module = unet(cluster(SLOW))
    PartitionStagesPass(stages=2, chunks=2, micro_batches=8).apply(context(), module)
    crossing = [op for op in module.walk() if isinstance(op, TransferOp)]
    # Forward to the second stage and back, backward the same way, and the loss.
    assert len(crossing) == 5


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 2), (2, 3), (3, 2)])
@pytest.mark.parametrize("beta", [SLOW, FAST])
def test_moving_begins_finds_what_trying_all_does(
    ranks: int, chunks: int, beta: float, monkeypatch: pytest.MonkeyPatch
):
    given = costs(cluster(beta, ranks), chunks)
    layers = len(given.work.layers.names)
    every = min(
        seconds_of_chunks(given, (0, *begins, layers))
        for count in rounds(ranks, chunks)
        for begins in itertools.combinations(range(1, layers), count - 1)
    )
    assert best_chunks(given).seconds == every
    monkeypatch.setattr(chunk_bounds, "FEW", 0)
    assert best_chunks(given).seconds <= 1.1 * every


def test_a_chunk_that_costs_nothing_hides_no_wait():
    """With an empty chunk first, a stage still waits for the chunk before its next."""
    given = costs(cluster(FAST), 2)
    layers = len(given.work.layers.names)
    total = given.compute(0, 0, layers)
    for begins in itertools.combinations(range(1, layers), 2):
        bounds = (0, *begins, layers)
        middle, last = given.compute(1, *bounds[1:3]), given.compute(0, *bounds[2:])
        assert seconds_of_chunks(given, bounds) >= max(total - last + 8 * last, total - middle - last + 8 * middle)


def test_a_pipeline_in_chunks_is_a_candidate_of_its_own():
    where = cluster(SLOW)
    bench = CandidateCompiler(unet(where), where)
    candidate = Candidate(Layout(where.mesh, "pipeline", 8, 2), preset(("dp", ("gpu",))))
    in_chunks = replace(candidate, layout=replace(candidate.layout, chunks=2))
    plain, chunked = (bench.finish(bench.solve(each)) for each in (candidate, in_chunks))
    assert chunked.seconds < 0.9 * plain.seconds
    assert bench.times.estimated(in_chunks.layout) < 0.9 * bench.times.estimated(candidate.layout)
    again = Chosen.read(Chosen(chunked.candidate, (), where.mesh).record()).candidate
    assert again.name == "dp on 2, 2 stages, up to 2 chunks, 8 micro-batches"
    assert module_text(bench.finish(bench.solve(again)).module) == module_text(chunked.module)


def test_a_pipeline_with_too_few_layers_has_one_chunk():
    where = cluster(SLOW, 8)
    bench = CandidateCompiler(unet(where), where)
    assert {each.chunks for each in pipelines(where.mesh, 8, bench.layers) if each.stages == 8} == {1}


@pytest.mark.parametrize("parts", [1, 2])
def test_a_stage_of_one_chunk_holds_half_as_many_parts(parts: int):
    where = cluster(SLOW)
    module = unet(where)
    stages = 'partition-stages{stages=2 chunks=2 begins="0,4,8"}'
    run_pipeline(context(), module, f"{stages},search-strategy,split-batch{{parts=8}},communicate")
    SchedulePipelinePass("auto", in_flight=parts).apply(context(), module)
    (func,) = step_functions(module)
    slots, fragments = schedule_of(func), [op for op in func.walk() if isinstance(op, FragmentOp)]
    works: list[Work] = []
    for op in fragments:
        kind = op.label.data.rstrip("0123456789.")
        stage, chunk = map(int, op.label.data.removeprefix(kind).split("."))
        works.append(Work(op.label.data, stage, FragmentKind(kind), chunk))
    assert {(work.stage, work.chunk) for work in works} == {(0, 0), (1, 0), (0, 1)}
    assert in_flight(slots[0], works) <= 2 * parts
    assert in_flight(slots[1], works) <= parts


def test_the_search_takes_chunks_where_they_are_faster():
    where = cluster(SLOW)
    seconds: list[float] = []
    for chunks in (True, False):
        module = unet(where)
        with pytest.MonkeyPatch.context() as patch:
            if not chunks:
                patch.setattr("shardwright.passes.planning.layouts.MOST_CHUNKS", 1)
            search = replace(SearchPlanPass(), stages=2, micro_batches=8)
            search.apply(context(), module)
        seconds.append(sum(each.seconds for each in simulate_module(module)))
    assert seconds[0] < 0.9 * seconds[1]
