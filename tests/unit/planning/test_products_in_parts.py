"""Chunked products: their expected time, and their use by the best plan if they make its step shorter."""

from __future__ import annotations

import pytest
from ir_files import context, parse
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.compile import import_training_step
from shardwright.dialects.mesh_ops import MeshOp
from shardwright.dialects.text import module_text
from shardwright.ir.cluster import Cluster, Device, Interference, Link
from shardwright.ir.mesh import Mesh
from shardwright.models.mlp import mlp_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.overlapping.chunks import ChunkTimes, ReducedProduct, sites_of
from shardwright.passes.overlapping.flow import OpFlow
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.planning.candidate_compiler import CandidateCompiler, Finished
from shardwright.passes.planning.candidates import Candidate, Layout, preset
from shardwright.passes.planning.records import Chosen
from shardwright.passes.step.step_view import step_views

MESH = Mesh.of(gpu=2)


def cluster(beta: float, *, launch: float = 0.0, memory: float = 1e15, interference: float = 1.0) -> Cluster:
    device = Device("d", (("float32", 1e9),), memory, 1e12, launch)
    slowed = Interference(interference, interference)
    return Cluster("c", MESH, (device,), (0, 0), (Link("gpu", 0.0, beta),), slowed)


def reduced(where: Cluster) -> tuple[ChunkTimes, ReducedProduct]:
    """A product of 512 MFLOP for each device, of which 1 MiB are reduced."""
    of = "#spmd.sharding<@mesh, "
    text = f"""
      spmd.mesh @mesh = <["gpu"=2]>
      func.func @step(%x: tensor<512x1024xf32> {{train.batch = "0", spmd.sharding = {of}[{{}}, {{"gpu"}}]>}},
          %w: tensor<1024x512xf32> {{train.param = "w", spmd.sharding = {of}[{{"gpu"}}, {{}}]>}})
          -> tensor<512x512xf32> {{
        %h = aten.mm %x, %w {{
          spmd.signature =
            #spmd.sig<@mesh, ([{{}}, {{"gpu"}}], [{{"gpu"}}, {{}}]) -> ([{{}}, {{}}], unreduced={{"gpu"}})>
        }} : (tensor<512x1024xf32>, tensor<1024x512xf32>) -> tensor<512x512xf32>
        %s = spmd.all_reduce [{{"gpu"}}] %h out_sharding = <@mesh, [{{}}, {{}}]> method = "flat" : tensor<512x512xf32>
        %y = aten.relu %s {{spmd.signature = #spmd.sig<@mesh, ([{{}}, {{}}]) -> ([{{}}, {{}}])>}}
          : (tensor<512x512xf32>) -> tensor<512x512xf32>
        func.return %y : tensor<512x512xf32>
      }}"""
    module = parse(text, context())
    next(op for op in module.ops if isinstance(op, MeshOp)).detach()
    add_cluster(module, where)
    ((view, own),) = step_views(module)
    flow = OpFlow(view)
    (site,) = sites_of(flow)
    assert isinstance(site, ReducedProduct)
    return ChunkTimes(flow, own), site


COMPUTE = 2 * 512 * 512 * 512 / 1e9


def test_parts_take_what_two_streams_do():
    # 1 MiB at 1 / beta bytes/s each way once: as long as the product.
    times, site = reduced(cluster(COMPUTE / 2**20))
    assert times.seconds(site, 1) == pytest.approx(2 * COMPUTE)
    assert [times.seconds(site, parts) for parts in (2, 4)] == [
        pytest.approx(1.5 * COMPUTE, rel=1e-3),
        pytest.approx(1.25 * COMPUTE, rel=1e-3),
    ]
    assert times.best_parts(site) == 8
    assert times.seconds(site, 8) == pytest.approx((1 + 1 / 8) * COMPUTE, rel=1e-3)


@pytest.mark.parametrize(
    "where",
    [
        cluster(COMPUTE / 2**20, launch=COMPUTE),  # as long as the product
        cluster(COMPUTE / 2**20, memory=2**20 / COMPUTE),  # what puts parts together is as slow as all else
        cluster(COMPUTE / 2**20, interference=2.5),
        cluster(0.01 * COMPUTE / 2**20),  # there is nearly nothing to gain
    ],
    ids=["launches", "copies", "interference", "fast"],
)
def test_nothing_is_cut_where_that_costs_more(where: Cluster):
    times, site = reduced(where)
    assert times.best_parts(site) == 1


@pytest.fixture(scope="module")
def mlp() -> ModuleOp:
    module = import_training_step(mlp_step((256, 512, 256, 16), batch=512))
    run_pipeline(context(), module, "prepare")
    return module


def compiled(mlp: ModuleOp, where: Cluster) -> tuple[Finished, Finished]:
    """Return the programs of tensor parallelism with whole products and with products in parts."""
    module = mlp.clone()
    add_cluster(module, where)
    bench = CandidateCompiler(module, where)
    layouts = (Layout(MESH), Layout(MESH, chunked=True))
    whole, in_parts = (bench.finish(bench.solve(Candidate(it, preset(("tp", ("gpu",)))))) for it in layouts)
    return whole, in_parts


def test_products_are_cut_in_parts_where_that_is_shorter(mlp: ModuleOp):
    whole, in_parts = compiled(mlp, cluster(5e-8, launch=1e-5, memory=1e10))
    assert in_parts.seconds < 0.98 * whole.seconds
    again = Chosen.read(Chosen(in_parts.candidate, (), MESH).record()).candidate
    assert again == in_parts.candidate
    assert again.name.endswith("on 2, products in parts")


def test_products_are_left_whole_where_collectives_take_no_time(mlp: ModuleOp):
    whole, in_parts = compiled(mlp, cluster(1e-12, memory=1e10))
    assert module_text(in_parts.module) == module_text(whole.module)
