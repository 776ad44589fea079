"""
Pipelines train as one device does: stages of one or two ranks, equal or not, every schedule, four micro-batches.

One launch per number of ranks runs its cases on gloo, with `--thorough` all; the interpreter runs a few.
The cluster makes splitting pay, so that stages of two ranks split. All together: uneven shares of unequal ranks, and
two halves of every micro-batch in turns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import dropout_steps
import pytest
import time_cuts
import torch
from launches import covering, names_of, results_of
from odd_steps import larger_gpt2
from split_cluster import split_cluster, unequal_cluster

from shardwright.api.checking.cases import CheckCase, CheckResult, compile_case, imported
from shardwright.api.checking.check import check_interpreted
from shardwright.ir.mesh import Mesh

MODELS = ("gpt2-tiny", "unet-tiny")
SHAPES = {2: ("1,1",), 3: ("1,1,1", "1,2", "2,1"), 4: ("1,1,1,1", "2,2", "1,2,1")}
SCHEDULES = ("gpipe", "1f1b", "eager-1f1b", "zero-bubble", "auto")
CHUNKS = {
    2: (("1,1", "interleaved-1f1b", "0,2,3,4"), ("1,1", "auto", "")),
    4: (("2,2", "interleaved-1f1b", "0,2,3,4"), ("2,2", "auto", "0,2,3,4"), ("2,2", "interleaved-1f1b", "")),
}
"""Ranks and schedules of stages of two chunks, and where these begin; by default where it is fastest."""

MANY_CHUNKS = (("1,1,1,1", "interleaved-1f1b", "0,1,2,3,4,5,6,7"), ("1,1,1,1", "auto", ""))
"""Further cases, for a model with enough layers."""

TOGETHER = {
    "ratios": (["balance-ratios", "split-batch{parts=4}"], ["overlap"]),
    "duplex": (["split-batch{parts=4}", "split-batch{parts=2 axis=half}"], ["duplex{axis=half}"]),
    "ratios and duplex": (
        ["balance-ratios", "split-batch{parts=4}", "split-batch{parts=2 axis=half}"],
        ["duplex{axis=half}"],
    ),
}
"""The passes before and after the passes that create collectives."""

PLAIN = (["split-batch{parts=4}"], ["overlap"])


def pipeline(ranks: str, schedule: str, inside: tuple[list[str], list[str]] = PLAIN, chunks: str = "") -> str:
    """The passes from an imported step to a pipeline of four micro-batches."""
    stages = f'partition-stages{{stages={len(ranks.split(","))} ranks="{ranks}"{chunks}}}'
    passes = ["prepare", stages, "search-strategy", *inside[0], "communicate", *inside[1]]
    # Also of ops that are slower in two, for there are no others in these models.
    passes += ["split-backward{slowdown=9.0}"] if schedule in ("zero-bubble", "auto") else []
    passes += ["plan-transfers", f"schedule-pipeline{{schedule={schedule} axis=micro}}", "finish"]
    return ",".join(passes)


def case(model: str, ranks: str, schedule: str, dtype: torch.dtype, chunks: str = "") -> CheckCase:
    mesh, passes = Mesh.of(gpu=sum(map(int, ranks.split(",")))), pipeline(ranks, schedule, PLAIN, chunks)
    return CheckCase(model, mesh, dtype=dtype, optimizer="sgd", cluster=split_cluster(mesh), pipeline=passes)


def together(inside: str, dtype: torch.dtype) -> CheckCase:
    """GPT-2 in two stages, the second on two unequal ranks."""
    mesh, passes = Mesh.of(gpu=3), pipeline("1,2", "eager-1f1b", TOGETHER[inside])
    cluster = unequal_cluster(mesh)
    return CheckCase(larger_gpt2, mesh, dtype=dtype, optimizer="sgd", cluster=cluster, pipeline=passes)


def cases(world_size: int) -> Iterator[tuple[str, CheckCase]]:
    for model in MODELS:
        for ranks in SHAPES[world_size]:
            for schedule in SCHEDULES if ranks != "2,1" else ("1f1b",):
                yield f"{model} {ranks} {schedule} float64", case(model, ranks, schedule, torch.float64)
        many = MANY_CHUNKS if world_size == 4 and model == "unet-tiny" else ()
        for ranks, schedule, begins in (*CHUNKS.get(world_size, ()), *many):
            chunks, of = (f' chunks=2 begins="{begins}"', "two chunks") if begins else (" chunks=2", "up to two chunks")
            yield f"{model} {ranks} {schedule} of {of} float64", case(model, ranks, schedule, torch.float64, chunks)
        last = SHAPES[world_size][-1]
        yield f"{model} {last} eager-1f1b float32", case(model, last, "eager-1f1b", torch.float32)


CASES = {name: each for world_size in SHAPES for name, each in cases(world_size)}
CASES |= {f"together {inside} eager-1f1b float64": together(inside, torch.float64) for inside in TOGETHER}
CASES["dropout 2,2 1f1b float64"] = replace(case("gpt2-tiny", "2,2", "1f1b", torch.float64), step=dropout_steps.vit)
CASES["transgan-tiny 3 stages eager-1f1b"] = time_cuts.SCHEDULED["3 stages, eager-1f1b"].case("transgan-tiny")
CASES["together ratios and duplex float32"] = together("ratios and duplex", torch.float32)


ALWAYS = {
    "gpt2-tiny 1,1 1f1b float64",
    "gpt2-tiny 1,1 eager-1f1b float32",
    "gpt2-tiny 1,1 interleaved-1f1b of two chunks float64",
    "unet-tiny 1,1 auto of up to two chunks float64",
    "gpt2-tiny 1,1,1 gpipe float64",
    "gpt2-tiny 1,1,1 zero-bubble float64",
    "unet-tiny 1,1,1 auto float64",
    "gpt2-tiny 1,2 eager-1f1b float64",
    "gpt2-tiny 2,1 1f1b float64",
    "transgan-tiny 3 stages eager-1f1b",
    "together ratios and duplex float32",
    "gpt2-tiny 1,1,1,1 auto float64",
    "unet-tiny 1,1,1,1 interleaved-1f1b of two chunks float64",
    "gpt2-tiny 2,2 1f1b float64",
    "gpt2-tiny 2,2 interleaved-1f1b of two chunks float64",
    "unet-tiny 2,2 eager-1f1b float64",
    "dropout 2,2 1f1b float64",
    "gpt2-tiny 1,2,1 eager-1f1b float32",
    "gpt2-tiny 1,2,1 zero-bubble float64",
    "unet-tiny 1,2,1 gpipe float64",
}
"""
Cases that always run on ranks. Every shape and every schedule is in some of them; the interpreter runs uneven shares
alone and two halves alone, and more shapes of both models.
"""


results = results_of(CASES)


@pytest.mark.distributed
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", names_of(CASES, lambda name: name in ALWAYS))
def test_a_pipeline_trains_as_one_device_does(name: str, results: Callable[[str], CheckResult]):
    result = results(name)
    assert result.passed, str(result)


INTERPRETED = [name for name in CASES if name.endswith("eager-1f1b float64") and not name.startswith("together")]
# Ranks always run shares and halves together.
TOGETHER_CASES = [name for name in CASES if name.startswith("together")]
INTERPRETED_TOO = [
    "unet-tiny 2,2 auto of two chunks float64",
    *names_of(TOGETHER_CASES, lambda name: "ratios and duplex" not in name),
]


@pytest.mark.parametrize("name", [*covering(INTERPRETED, every=4), *INTERPRETED_TOO])
def test_the_interpreter_agrees(name: str):
    result = check_interpreted(replace(CASES[name], steps=2))
    assert result.passed, str(result)


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("gpt2-tiny 2,2 1f1b float64", [r"def step1\(", r"comm\.(start|all_\w+|reduce_scatter)\("]),
        ("unet-tiny 1,1,1 auto float64", [r"True, False, False", r"False, True, True"]),
        ("together ratios and duplex float32", [r"offsets=\{0: \[0, (4[1-9]|5\d), 60\]\}", r"comm\.start\("]),
    ],
)
def test_programs_do_what_they_are_to_try(name: str, patterns: list[str]):
    """Or the cases above would compare less than they say."""
    program = compile_case(CASES[name], imported(CASES[name])).program
    for pattern in patterns:
        assert re.search(pattern, program), pattern
