"""
Groups of parameters and clipped gradients train as on one device: losses, norm, gradients, parameters and states.

Plans are presets or searched, whole, accumulated or in stages; one launch per number of ranks runs all its cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import recipe_steps
import torch
from launches import names_of, results_of
from split_cluster import split_cluster

from shardwright.api.checking.cases import CheckCase, CheckResult, compile_case, imported
from shardwright.api.checking.check import check_interpreted
from shardwright.ir.mesh import Mesh, parse_mesh

HYBRID = Path(__file__).parents[1] / "support" / "hybrid_pins.toml"
PIPELINES = {
    "accumulated": "prepare,search-strategy,program{parts=4},finish",
    "in stages": "prepare,partition-stages{stages=2},search-strategy,"
    "program{mode=pipeline parts=4 schedule=1f1b},finish",
}


def case(step: Callable[..., object], mesh: str, pins: str | Path | None, pipeline: str | None = None) -> CheckCase:
    parsed = parse_mesh(mesh)
    cluster = split_cluster(parsed)
    return CheckCase(step, parsed, pins, torch.float64, cluster=cluster, pipeline=pipeline)  # pyright: ignore[reportArgumentType]


def cases() -> Iterator[tuple[str, CheckCase]]:
    for pins in ("dp", "zero1", "zero3", "tp", None):
        yield f"gpt2 on 2, {pins or 'searched'}", case(recipe_steps.gpt2, "2", pins)
    yield "gpt2 on 4, zero3", case(recipe_steps.gpt2, "4", "zero3")
    yield "gpt2 on 2x2, hybrid", case(recipe_steps.gpt2, "2x2", HYBRID)
    yield "gpt2 on 2x2, searched", case(recipe_steps.gpt2, "2x2", None)
    for pins in ("zero3", None):
        yield f"vgg on 2, {pins or 'searched'}", case(recipe_steps.vgg, "2", pins)
        for name in ("vit", "moe", "lora"):
            yield f"{name} on 2, {pins or 'searched'}", case(getattr(recipe_steps, name), "2", pins)
    yield "vgg on 2x2, searched", case(recipe_steps.vgg, "2x2", None)
    yield "moe on 2x2, hybrid", case(recipe_steps.moe, "2x2", HYBRID)
    yield "lora on 4, zero3", case(recipe_steps.lora, "4", "zero3")
    for name, pipeline in PIPELINES.items():
        yield f"gpt2 on 2, {name}", case(recipe_steps.gpt2, "2", None, pipeline)


CASES = dict(cases())
# AdamW divides the noise of float32 by its own size.
CASES["gpt2 on 2, zero3, float32"] = replace(CASES["gpt2 on 2, zero3"], dtype=torch.float32, optimizer="sgd")


THOROUGH = {
    "gpt2 on 2, zero1",
    "gpt2 on 4, zero3",
    "gpt2 on 2x2, hybrid",
    "gpt2 on 2x2, searched",
    "gpt2 on 2, accumulated",
    "gpt2 on 2, searched",
    "vgg on 2, searched",
    "vgg on 2, zero3",
    "vit on 2, searched",
    "moe on 2, searched",
    "moe on 2, zero3",
    "lora on 2, zero3",
    "lora on 4, zero3",
}
"""Cases that run only with `--thorough`: others cover the plan, partly in the interpreter, and others the model."""

results = results_of(CASES)


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names_of(CASES, lambda name: name not in THOROUGH))
def test_a_recipe_trains_as_on_one_device(name: str, results: Callable[[str], CheckResult]):
    result = results(name)
    assert result.passed, str(result)
    assert {"metric", "gradient"} <= {worst.kind for worst in result.errors}


INTERPRETED = ("gpt2 on 2x2, searched", "gpt2 on 2, accumulated", "vgg on 2, zero3")


# A searched plan on two axes always runs on ranks.
@pytest.mark.parametrize("name", names_of(INTERPRETED, lambda name: "searched" not in name))
def test_a_recipe_is_right_before_lowering(name: str):
    result = check_interpreted(replace(CASES[name], steps=2))
    assert result.passed, str(result)


def test_the_norm_of_split_gradients_is_one_sum_over_ranks():
    """Squares of split gradients are added on each rank before they are reduced, once per set of axes."""
    mesh = Mesh.of(gpu=4)
    zero3 = replace(CASES["gpt2 on 4, zero3"], mesh=mesh, cluster=split_cluster(mesh))
    program = compile_case(zero3, imported(zero3)).program
    scalars = [line for line in program.splitlines() if "all_reduce" in line and "squares" in line]
    assert 1 <= len(scalars) <= 4, scalars
