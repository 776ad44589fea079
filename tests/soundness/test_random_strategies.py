"""
Any strategy computes the same step: every op of a model is given a signature at random.

So are signatures checked together, resharding between any two of them, and the passes that make it ops. Two hundred
strategies: `python benchmarks/zoo.py --strategies 200`.
"""

import pytest
from random_strategies import RandomStrategies, with_random_signatures
from xdsl.context import Context

from shardwright.api.check import TOLERANCES
from shardwright.ir.mesh import parse_mesh
from shardwright.lowering.interpreter import find_function, interpret
from shardwright.lowering.random_inputs import random_inputs
from shardwright.lowering.verify_numerics import check_pass
from shardwright.passes.pipeline import run_pipeline


@pytest.mark.parametrize("mesh", ["2x2", "x=3"])
def test_every_pass_keeps_what_random_signatures_compute(mesh: str):
    spatial = parse_mesh(mesh)
    given = RandomStrategies("mlp-tiny", spatial).module
    for seed in range(5):
        module = with_random_signatures(given, spatial, seed)
        check_pass(given, module, "random signatures")
        run_pipeline(Context(), module, "insert-resharding,select-collectives,insert-frees")
        check_pass(given, module, "insert-resharding,select-collectives,insert-frees")
        inputs = random_inputs(find_function(module))
        interpret(module, inputs, check_replicas=True, explicit=True)


@pytest.mark.parametrize(
    ("name", "mesh", "seeds"),
    [
        ("gpt2-tiny", "2x2", range(3)),
        ("bert-sgmoe-tiny", "2x2", range(2)),
        ("vit-switch-tiny", "x=3", range(3)),
        ("vgg19-tiny", "x=4", range(2)),
        ("mixtral-tiny", "x=3", range(2)),
    ],
)
def test_random_signatures_train_as_one_device_does(name: str, mesh: str, seeds: range):
    strategies = RandomStrategies(name, parse_mesh(mesh))
    worst = max((strategies.error(seed) for seed in seeds), key=lambda each: each.error)
    assert worst.error <= TOLERANCES[strategies.case.dtype], worst
