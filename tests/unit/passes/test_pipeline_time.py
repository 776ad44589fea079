"""The predicted time of a pipeline: computation and waits of its stages."""

import pytest
from ir_files import context, parse

from shardwright.api.compile import import_training_step
from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.models.registry import training_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.simulation.timeline import Timeline, longest, predict_pipeline
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import cluster_of_module, step_functions, step_views

PASSES = "partition-stages{stages=2},search-strategy,program{mode=pipeline parts=4 schedule=eager-1f1b}"


def timelines(alpha: str, beta: str) -> list[Timeline]:
    """Predict two stages with a matrix product each, and four parts of 16 rows."""
    text = f"""
    #cpu = #spmd.device<"cpu", flops = {{float32 = 1.0e9}}, bandwidth = 1.0e12, memory = 1.0e9, launch = 0.0>
    #link = #spmd.link<"gpu", alpha = {alpha}, beta = {beta}>
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh devices [#cpu] placement [0, 0] links [#link]
    func.func @step(%v: tensor<64x64xf32> {{train.param = "v"}}, %w: tensor<64x64xf32> {{train.param = "w"}},
        %x: tensor<64x64xf32> {{train.batch = "0"}}) -> tensor<f32> {{
      %a = aten.mm %x, %v : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc1")
      %b = aten.mm %a, %w : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32> loc("fc2")
      %s = aten.sum %b : (tensor<64x64xf32>) -> tensor<f32> loc("fc2")
      func.return %s : tensor<f32>
    }}"""
    ctx = context()
    module = parse(text, ctx)
    run_pipeline(ctx, module, PASSES)
    (func,) = step_functions(module)
    return predict_pipeline(func, [cluster for _, cluster in step_views(module)], cluster_of_module(module))


def test_the_second_stage_begins_after_the_first_part():
    first, second = timelines("0.0", "0.0")
    assert second.seconds == pytest.approx(first.compute_seconds / 4 + second.compute_seconds)
    assert first.seconds == pytest.approx(first.compute_seconds)


def test_stages_wait_for_a_slow_link():
    first, second = timelines("0.0", "1.0e-6")
    part = 16 * 64 * 4 * 1e-6
    assert second.seconds > 4 * part
    assert second.seconds < 4 * part + first.compute_seconds + second.compute_seconds
    assert longest([first, second])["exposed"] > 3 * part


def test_every_transfer_has_the_latency_of_its_link():
    _, second = timelines("0.5", "0.0")
    assert second.seconds == pytest.approx(2.0, rel=0.01)


def test_eager_1f1b_hides_the_waits_of_1f1b():
    mesh = Mesh.of(gpu=3)
    device = Device("cpu", (("float32", 1e9),), 1e10, 1e10, 0.0)
    cluster = Cluster("three", mesh, (device,), (0, 0, 0), (Link("gpu", 2e-3, 1e-9),))
    searched = import_training_step(training_step("gpt2-tiny"))
    add_cluster(searched, cluster)
    run_pipeline(context(), searched, "prepare,partition-stages{stages=3},search-strategy")
    seconds: dict[str, float] = {}
    for schedule in ("gpipe", "1f1b", "eager-1f1b"):
        module = searched.clone()
        run_pipeline(context(), module, f"program{{mode=pipeline parts=8 schedule={schedule}}}")
        (func,) = step_functions(module)
        found = predict_pipeline(func, [each for _, each in step_views(module)], cluster_of_module(module))
        seconds[schedule] = longest(found)["step"]
    assert seconds["eager-1f1b"] < seconds["1f1b"]
