"""Estimates of pipelines, beside the simulated steps of data parallelism in their stages."""

from dataclasses import replace
from functools import cache

import pytest
from ir_files import context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import import_training_step
from shardwright.dialects import train
from shardwright.dialects.compute import value_bytes
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.planning.candidate_compiler import CandidateCompiler
from shardwright.passes.planning.candidates import Candidate, Layout, preset

MICROSECOND = 1e-6


@cache
def _gpt2() -> ModuleOp:
    config = GPT2Config(layers=4, width=64, heads=4, vocabulary=4001, positions=32, dropout=0.0)
    module = import_training_step(gpt2_step(config, batch=64, length=32))
    run_pipeline(context(), module, "prepare")
    return module


def bench(beta: float) -> CandidateCompiler:
    """Return a compiler of a GPT-2 with tied weights, for two hosts of two devices."""
    device = Device("d", (("float32", 1e11),), 1e11, 1e12, MICROSECOND)
    links = (Link("node", MICROSECOND, beta), Link("gpu", MICROSECOND, 1e-10))
    where = Cluster("c", Mesh.of(node=2, gpu=2), (device,), (0,) * 4, links)
    module = _gpt2().clone()
    add_cluster(module, where)
    return CandidateCompiler(module, where)


def pipeline(compiler: CandidateCompiler, stages: int, parts: int, chunks: int) -> Layout:
    return Layout(compiler.own_mesh, "pipeline", parts, stages, chunks=chunks)


@pytest.mark.parametrize("beta", [1e-10, 1e-9, 1e-8])
@pytest.mark.parametrize(("stages", "parts", "chunks"), [(2, 4, 1), (2, 8, 2), (4, 8, 1)])
def test_estimates_are_close_to_simulated_steps(beta: float, stages: int, parts: int, chunks: int):
    compiler = bench(beta)
    layout = pipeline(compiler, stages, parts, chunks)
    simulated = compiler.finish(compiler.solve(Candidate(layout, preset(("dp", ("gpu",)))))).seconds
    assert compiler.times.estimated(layout) == pytest.approx(simulated, rel=0.35)


def test_a_tied_weight_passes_once_and_nothing_hides_it():
    """Two chunks keep both uses of the weight on one stage."""
    compiler = bench(1e-8)
    apart, together = (compiler.times.estimated(pipeline(compiler, 2, 8, chunks)) for chunks in (1, 2))
    weight = 4001 * 64 * 4
    assert apart - together > 0.8 * 2 * weight * 1e-8


def test_gradients_are_exposed_after_the_last_micro_batch():
    """Micro-batches do not hide the reduction over a slow link inside of stages."""
    compiler = bench(1e-10)
    slow = replace(compiler.cluster, links=(compiler.cluster.links[0], Link("gpu", MICROSECOND, 1e-8)))
    layout = pipeline(compiler, 2, 8, 2)
    (view,) = compiler.views
    parameters = sum(value_bytes(item.argument) for item in view.inputs if item.role == train.PARAM)
    grown = compiler.on(slow).times.estimated(layout) - compiler.times.estimated(layout)
    assert grown > 0.3 * parameters / 2 * 1e-8
