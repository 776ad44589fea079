"""
The shipped models train on four gloo processes as on one device.

This file has the larger models in float64, where only sharding can cause a difference of 1e-10, without the models of
`test_equality.py`. `python benchmarks/zoo.py` runs all models in both precisions on both meshes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from launches import names_of, results_of
from split_cluster import split_cluster

from shardwright.api.checking.cases import CheckCase, CheckResult
from shardwright.ir.mesh import parse_mesh

MESHES = {
    "vit-switch-tiny": "4",
    "mixtral-tiny": "2x2",
    "resnet50-tiny": "4",
    "utransformer-tiny": "2x2",
    "transgan-tiny": "2x2",
}
CASES = {
    name: CheckCase(name, parse_mesh(mesh), dtype=torch.float64, steps=2, cluster=split_cluster(parse_mesh(mesh)))
    for name, mesh in MESHES.items()
}


ELSEWHERE = ("mixtral-tiny", "transgan-tiny")
"""Models that run here only with `--thorough`: test_equality.py and test_pipelines.py always run them on ranks."""

results = results_of(CASES)


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names_of(CASES, lambda name: name not in ELSEWHERE))
def test_a_shipped_model_trains_as_one_device_does(name: str, results: Callable[[str], CheckResult]):
    result = results(name)
    assert result.passed, str(result)
