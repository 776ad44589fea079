"""The costs behind the cuts of `partition-stages`: devices of each stage, and values that cross."""

import itertools
import json
from pathlib import Path

import pytest
from ir_files import context, parse

from shardwright.dialects.placed import shape_of
from shardwright.dialects.staged import Stages
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import step_functions

DEVICES = """
#slow = #spmd.device<"slow", flops = {float32 = 1.0e9}, bandwidth = 1.0e12, memory = 1.0e9, launch = 0.0>
#fast = #spmd.device<"fast", flops = {float32 = 2.0e9}, bandwidth = 1.0e12, memory = 1.0e9, launch = 0.0>
"""


def layers_of_stages(options: str, placement: str, widths: list[int], beta: str = "0.0") -> list[int]:
    """Return the number of layers of each stage, for layers that multiply matrices of `widths`."""
    kinds = placement.split(",")
    arguments = ", ".join(
        f'%w{i}: tensor<{a}x{b}xf32> {{train.param = "l{i}"}}' for i, (a, b) in enumerate(itertools.pairwise(widths))
    )
    ops = "\n".join(
        f"%x{i + 1} = aten.mm %x{i}, %w{i} : (tensor<64x{a}xf32>, tensor<{a}x{b}xf32>) -> tensor<64x{b}xf32>"
        f' loc("layer.{i}")'
        for i, (a, b) in enumerate(itertools.pairwise(widths))
    )
    text = f"""{DEVICES}
    spmd.mesh @mesh = <["gpu"={len(kinds)}]>
    spmd.cluster @c on @mesh devices [#slow, #fast] placement [{placement}]
      links [#spmd.link<"gpu", alpha = 0.0, beta = {beta}>]
    func.func @step(%x0: tensor<64x{widths[0]}xf32> {{train.batch = "0"}}, {arguments})
        -> tensor<64x{widths[-1]}xf32> {{
      {ops}
      func.return %x{len(widths) - 1} : tensor<64x{widths[-1]}xf32>
    }}"""
    ctx = context()
    module = parse(text, ctx)
    run_pipeline(ctx, module, f"partition-stages{{{options}}}")
    (func,) = step_functions(module)
    stages = Stages(func)
    made = [stages.of_value(arg) for arg in func.body.block.args if len(shape_of(arg)) == 2][1:]
    return [made.count(stage) for stage in range(len(stages.names))]


def test_a_faster_device_gets_more_layers():
    assert layers_of_stages("stages=2 micro-batches=64", "0, 1", [64] * 7) == [2, 4]
    assert layers_of_stages("stages=2 micro-batches=64", "1, 0", [64] * 7) == [4, 2]


def test_more_devices_get_more_layers():
    assert layers_of_stages('stages=2 ranks="1,3" micro-batches=64', "0, 0, 0, 0", [64] * 9) == [2, 6]


def test_amp_counts_the_mean_device():
    assert layers_of_stages("stages=2 cost=amp micro-batches=64", "0, 1", [64] * 7) == [3, 3]


def test_an_expensive_edge_is_not_cut():
    widths = [64, 64, 64, 512, 64, 64, 64]
    assert layers_of_stages("stages=2", "0, 0", widths)[0] == 3
    assert layers_of_stages("stages=2", "0, 0", widths, beta="1.0")[0] != 3


def test_amp_reads_a_profile(tmp_path: Path):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"forward_s": [5.0, 1.0, 1.0, 1.0, 1.0, 1.0]}))
    assert layers_of_stages(f'stages=2 cost=amp costs="{file}"', "0, 0", [64] * 7) == [1, 5]


@pytest.mark.parametrize(
    ("given", "message"),
    [({"forward_s": [1.0]}, "has 1 layers, the step 6: layer.0, layer.1"), ({}, r'expected {"forward_s"')],
)
def test_a_profile_that_does_not_fit_is_refused(tmp_path: Path, given: object, message: str):
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(given))
    with pytest.raises(Exception, match=message):
        layers_of_stages(f'stages=2 cost=amp costs="{file}"', "0, 0", [64] * 7)
