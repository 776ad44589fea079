"""
Pipelines train as one device does: stages of one or two ranks, equal or not, every schedule, four micro-batches.

One launch per number of ranks runs all of its cases on gloo; the interpreter runs one of each shape too. The cluster
makes splitting pay, so that stages of two ranks split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import pytest
import torch
from split_cluster import split_cluster

from shardwright.api.check import CheckCase, CheckResult, check_interpreted, check_on_ranks, compile_case, imported
from shardwright.ir.mesh import Mesh

MODELS = ("gpt2-tiny", "unet-tiny")
SHAPES = {2: ("1,1",), 3: ("1,1,1", "1,2", "2,1"), 4: ("2,2", "1,2,1")}
SCHEDULES = ("gpipe", "1f1b", "eager-1f1b")
UNEVEN = 'balance-ratios{ratios="0.7,0.3" axis="gpu"}'


def pipeline(ranks: str, schedule: str, *, ratios: str = "", inside: str = "") -> str:
    """The passes from an imported step to a pipeline of four micro-batches."""
    before = ["decompose-mean", "canonicalize", "cse", "dce"]
    stages = f'partition-stages{{stages={len(ranks.split(","))} ranks="{ranks}"}}'
    parts = ["split-batch{parts=4}", "insert-resharding", "select-collectives", "overlap"]
    after = [f"schedule-pipeline{{schedule={schedule}}}", "plan-transfers", "check-memory", "insert-frees"]
    passes = (*before, stages, "search-strategy", ratios, *parts, inside, *after)
    return ",".join(each for each in passes if each)


def case(model: str, ranks: str, schedule: str, dtype: torch.dtype, **more: str) -> CheckCase:
    mesh = Mesh.of(gpu=sum(map(int, ranks.split(","))))
    passes = pipeline(ranks, schedule, **more)
    return CheckCase(model, mesh, dtype=dtype, optimizer="sgd", cluster=split_cluster(mesh), pipeline=passes)


def cases(world_size: int) -> Iterator[tuple[str, CheckCase]]:
    for model in MODELS:
        for ranks in SHAPES[world_size]:
            for schedule in SCHEDULES:
                yield f"{model} {ranks} {schedule} float64", case(model, ranks, schedule, torch.float64)
            yield f"{model} {ranks} 1f1b float32", case(model, ranks, "1f1b", torch.float32)


CASES = {name: each for world_size in SHAPES for name, each in cases(world_size)}


@cache
def results(world_size: int) -> Mapping[str, CheckResult]:
    names = [name for name, each in CASES.items() if each.mesh.device_count == world_size]
    found = check_on_ranks([CASES[name] for name in names], world_size)
    return dict(zip(names, found, strict=True))


@pytest.mark.distributed
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CASES)
def test_a_pipeline_trains_as_one_device_does(name: str):
    result = results(CASES[name].mesh.device_count)[name]
    assert result.passed, str(result)


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("eager-1f1b float64")])
def test_the_interpreter_agrees(name: str):
    result = check_interpreted(CASES[name])
    assert result.passed, str(result)


def test_stages_of_two_ranks_communicate():
    """Or the cases above would not try what they say."""
    program = compile_case(CASES["gpt2-tiny 2,2 1f1b float64"], imported(CASES["gpt2-tiny 2,2 1f1b float64"])).program
    for step in ("step0", "step1"):
        assert f"def {step}(" in program
    assert "comm.all_reduce" in program or "comm.start" in program
