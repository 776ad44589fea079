"""An outline predicts the same seconds as the simulation of its step, on its cluster and on others."""

import pytest
from _outline import outline_of, outline_seconds
from ir_files import context, parse
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.pipe import Action
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.ir.submesh import subcluster
from shardwright.passes.analysis.simulation.simulate import places_of, simulate
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import cluster_of_module, step_functions

PASSES = "partition-stages{stages=2},search-strategy,program{mode=pipeline parts=4 schedule=1f1b}"


def parsed(text: str) -> ModuleOp:
    """Parse a module on devices of one kind."""
    device = '#cpu = #spmd.device<"cpu", flops = {float32 = 1.0e9}, bandwidth = 1.0e9, memory = 1.0e9, launch = 1.0e-6>'
    return parse(device + text, context())


def planned() -> ModuleOp:
    """Return two stages of two ranks, each with a matrix product and its gradient."""
    module = parsed("""
    spmd.mesh @mesh = <["pipe"=2, "gpu"=2]>
    spmd.cluster @four on @mesh devices [#cpu] placement [0, 0, 0, 0]
      links [#spmd.link<"pipe", alpha = 1.0e-5, beta = 1.0e-8>, #spmd.link<"gpu", alpha = 2.0e-5, beta = 1.0e-9>]
    func.func @step(%v: tensor<64x64xf32> {train.param = "v"}, %w: tensor<64x64xf32> {train.param = "w"},
        %x: tensor<64x64xf32> {train.batch = "0"}) -> (tensor<f32>, tensor<64x64xf32>) {
      %a = aten.mm %x, %v : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc1")
      %b = aten.mm %a, %w : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc2")
      %s = aten.sum %b : (tensor<64x64xf32>) -> tensor<f32> loc("fc2")
      %t = aten.t %a {train.backward} : (tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc2")
      %g = aten.mm %t, %b {train.backward} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc2")
      func.return %s, %g : tensor<f32>, tensor<64x64xf32>
    }""")
    run_pipeline(context(), module, PASSES)
    return module


def other(launch: float, alpha: float, beta: float) -> Cluster:
    links = (Link("pipe", alpha, beta), Link("gpu", 3 * alpha, beta / 2))
    device = Device("other", (("float32", 3e9),), 2e9, 1e9, launch)
    return Cluster("other", Mesh.of(pipe=2, gpu=2), (device,), (0,) * 4, links)


@pytest.mark.parametrize("cluster", [None, other(0.0, 1e-3, 1e-9), other(1e-4, 0.0, 1e-6), other(1e-3, 1e-6, 1e-8)])
def test_an_outline_takes_as_long_as_the_simulation(cluster: Cluster | None):
    module = planned()
    (func,) = step_functions(module)
    whole = cluster or cluster_of_module(module)
    outline = outline_of(module, func)
    clusters = [
        subcluster(whole, stage.mesh, range(stage.first, stage.first + stage.mesh.device_count))
        for stage in outline.stages
    ]
    simulated = simulate(func, places_of(func, clusters, whole)).seconds
    assert outline_seconds(outline, whole) == pytest.approx(simulated, rel=1e-9)


def test_iterations_of_a_loop_share_a_stretch():
    module = planned()
    (func,) = step_functions(module)
    for stage in outline_of(module, func).stages:
        runs = [slot.label for slot in stage.slots if slot.action is Action.RUN]
        assert len(runs) > len(stage.stretches)


def test_work_that_overlaps_other_work_is_refused():
    module = parsed("""
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#spmd.link<"gpu", alpha = 1.0e-5, beta = 1.0e-8>]
    func.func @step(%x: tensor<4x8xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}, {}]>})
        -> tensor<8xf32> {
      %g = aten.sum.dim_IntList %x {dim = [0 : i64],
        spmd.signature = #spmd.sig<@mesh, ([{"gpu"}, {}]) -> ([{}], unreduced={"gpu"})>
      } : (tensor<4x8xf32>) -> tensor<8xf32>
      %t = spmd.start "all_reduce" %g out_shardings = [#spmd.sharding<@mesh, [{}]>] : tensor<8xf32>
      %g.sum = spmd.wait %t : tensor<8xf32>
      func.return %g.sum : tensor<8xf32>
    }""")
    (func,) = step_functions(module)
    with pytest.raises(ValueError, match="overlaps other work"):
        outline_of(module, func)
