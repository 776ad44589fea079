"""
The shipped models train on four gloo processes as on one device.

Here the larger kinds, in float64, in which nothing but the sharding can make a difference of 1e-10; all models in both
precisions on both meshes: `python benchmarks/zoo.py`. Those of `test_equality.py` are not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from split_cluster import split_cluster

from shardwright.api.check import CheckCase, CheckResult, check_on_ranks
from shardwright.ir.mesh import parse_mesh

MESHES = {
    "vit-switch-tiny": "4",
    "mixtral-tiny": "2x2",
    "resnet50-tiny": "4",
    "utransformer-tiny": "2x2",
    "transgan-tiny": "2x2",
}
STEPS = 2


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Mapping[str, CheckResult]:
    """By model; one launch runs all that are to be tested."""
    wanted = {item.name.partition("[")[2].removesuffix("]") for item in request.session.items}
    cases = [
        CheckCase(name, parse_mesh(mesh), dtype=torch.float64, steps=STEPS, cluster=split_cluster(parse_mesh(mesh)))
        for name, mesh in MESHES.items()
        if name in wanted
    ]
    return {each.case.name: each for each in check_on_ranks(cases, 4)}


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MESHES)
def test_a_shipped_model_trains_as_one_device_does(name: str, results: Mapping[str, CheckResult]):
    assert results[name].passed, str(results[name])
