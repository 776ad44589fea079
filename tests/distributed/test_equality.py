"""
Lowered programs on gloo processes train as one device does: losses, every gradient, everything that is kept.

One launch per number of ranks runs all of its cases, for starting eight processes takes longer than most of
them. The cluster makes splitting pay, so that searched plans split too. `pytest --thorough` runs all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import product

import pytest
import torch
from split_cluster import split_cluster

from shardwright.api.check import CheckCase, CheckResult, check_on_ranks, compile_case, imported
from shardwright.ir.mesh import parse_mesh
from shardwright.runtime.spawn import RankError

MODELS = ("mlp-tiny", "gpt2-tiny", "bert-tiny", "vit-tiny", "vgg19-tiny")
MESHES = {2: ("2", "2x1"), 4: ("4", "2x2"), 8: ("8", "2x4")}
PRECISIONS = ((torch.float32, "sgd"), (torch.float64, "sgd"), (torch.float64, "adamw"))
HYBRID = """
[[pin]]
preset = "dp"
axes = ["a0"]
[[pin]]
preset = "tp"
axes = ["a1"]
"""
"""Data-parallel over the first axis, tensor-parallel over the second."""


def case(model: str, mesh: str, pins: str | None, dtype: torch.dtype, optimizer: str) -> CheckCase:
    parsed = parse_mesh(mesh)
    return CheckCase(model, parsed, pins, dtype, optimizer, cluster=split_cluster(parsed))


def cases(world_size: int) -> Iterator[CheckCase]:
    one_axis, two_axes = MESHES[world_size]
    for model in MODELS:
        for mesh, (dtype, optimizer) in product(MESHES[world_size], PRECISIONS):
            yield case(model, mesh, None, dtype, optimizer)
        for dtype in (torch.float32, torch.float64):
            for pins in ("dp", "tp", "zero3"):
                yield case(model, one_axis, pins, dtype, "sgd")
            yield case(model, two_axes, HYBRID, dtype, "sgd")


CASES = {str(each): each for world_size in MESHES for each in cases(world_size)}


def is_quick(each: CheckCase) -> bool:
    """Whether a case is always run: AdamW in double precision, and searched plans in single precision on few ranks."""
    if each.optimizer == "sgd" and each.pins is None:
        return each.dtype == torch.float32 and each.mesh.device_count < 8
    return each.dtype == torch.float64


NAMES = [name if is_quick(each) else pytest.param(name, marks=pytest.mark.thorough) for name, each in CASES.items()]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Callable[[int], Mapping[str, CheckResult]]:
    """By number of ranks, the results by name of those cases that are to be tested here."""
    wanted = {item.name.partition("[")[2].removesuffix("]") for item in request.session.items}

    @cache
    def launch(world_size: int) -> Mapping[str, CheckResult] | RankError:
        mine = [CASES[name] for name in CASES if name in wanted and CASES[name].mesh.device_count == world_size]
        try:
            return {str(each.case): each for each in check_on_ranks(mine, world_size)}
        except RankError as error:
            return error

    def results_of(world_size: int) -> Mapping[str, CheckResult]:
        found = launch(world_size)
        if isinstance(found, RankError):
            pytest.fail(str(found))
        return found

    return results_of


@pytest.mark.distributed
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_a_program_trains_as_one_device_does(name: str, results: Callable[[int], Mapping[str, CheckResult]]):
    result = results(CASES[name].mesh.device_count)[name]
    assert result.passed, str(result)


@pytest.mark.parametrize("model", MODELS)
def test_what_is_searched_here_communicates(model: str):
    """Or the cases above would compare one device with itself."""
    searched = case(model, "2x2", None, torch.float32, "sgd")
    assert "comm." in compile_case(searched, imported(searched)).program
