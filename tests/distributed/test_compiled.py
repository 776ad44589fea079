"""
Programs with compiled code between collectives train as one device does: losses, gradients and states.

One launch per number of ranks runs its cases. Compilation is slow, so most cases run only with `pytest --thorough`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from launches import names_of, results_of
from split_cluster import split_cluster

from shardwright.api.checking.cases import CheckCase, CheckResult
from shardwright.ir.mesh import Mesh

MODELS = ("gpt2-tiny", "vit-tiny", "vgg13-tiny")
STRATEGIES = {"dp": ("dp", "even"), "zero3": ("zero3", "even"), "tp": ("tp", "even"), "uneven": ("tp", "0.7,0.3")}
QUICK = "gpt2-tiny-zero3"


def case(model: str, ranks: int, pins: str, ratios: str = "even") -> CheckCase:
    mesh = Mesh.of(gpu=ranks)
    return CheckCase(
        model, mesh, pins, optimizer="sgd", steps=4, cluster=split_cluster(mesh), ratios=ratios, compile=True
    )


CASES = {
    **{f"{model}-{name}": case(model, 2, *how) for model in MODELS for name, how in STRATEGIES.items()},
    **{f"{model}-alone": case(model, 1, "dp") for model in MODELS},
}

results = results_of(CASES)


@pytest.mark.distributed
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", names_of(CASES, lambda name: name == QUICK))
def test_a_compiled_program_trains_as_one_device_does(name: str, results: Callable[[str], CheckResult]):
    result = results(name)
    assert result.passed, str(result)
