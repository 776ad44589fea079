"""
Recomputation for backward does not change results: losses and gradients equal one device.

The model marks regions (`torch.utils.checkpoint`), or the pass chooses values, with dropout and all ways to split a
step over devices and time; one launch per number of ranks runs all its cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import checkpoint_steps
import dropout_steps
import pytest
import recipe_steps
import torch
from launches import names_of, results_of
from split_cluster import split_cluster

from shardwright.api.checking.cases import CheckCase, CheckResult, compile_case, imported
from shardwright.api.checking.check import check_interpreted
from shardwright.api.training_step import TrainingStep
from shardwright.dialects.step import RECOMPUTED
from shardwright.ir.mesh import parse_mesh

HYBRID = Path(__file__).parents[1] / "support" / "hybrid_pins.toml"
CLEAN = "prepare,recompute{{keep={keep}}}"
ACCUMULATED = f"{CLEAN},search-strategy,program{{{{parts=4}}}},finish"
DUPLEX = f"{CLEAN},search-strategy,program{{{{mode=duplex parts=2}}}},finish"
IN_STAGES = (
    f"{CLEAN},partition-stages{{{{stages=2}}}},search-strategy,"
    "program{{mode=pipeline parts=4 schedule=1f1b}},finish"
)


def whole(
    step: Callable[[], TrainingStep], pins: str | Path | None, keep: float | None = None, mesh: str = "2"
) -> CheckCase:
    parsed = parse_mesh(mesh)
    return CheckCase(step, parsed, pins, torch.float64, cluster=split_cluster(parsed), keep_activations=keep)


def in_parts(step: Callable[[], TrainingStep], pipeline: str, keep: float = 1) -> CheckCase:
    return replace(whole(step, None), pipeline=pipeline.format(keep=keep))


def cases() -> Iterator[tuple[str, CheckCase]]:
    for pins in ("dp", "zero3", "tp"):
        yield f"dropout, {pins}, none kept", whole(dropout_steps.gpt2, pins, 0)
    yield "dropout, searched, some kept", whole(dropout_steps.gpt2, None, 0.4)
    yield "dropout, accumulated", in_parts(dropout_steps.gpt2, ACCUMULATED, 0.3)
    yield "dropout, duplex", in_parts(dropout_steps.gpt2, DUPLEX, 0)
    yield "dropout, in stages", in_parts(dropout_steps.gpt2, IN_STAGES, 0.3)
    yield "marked, zero3", whole(checkpoint_steps.gpt2, "zero3")
    yield "marked and more, searched", whole(checkpoint_steps.gpt2, None, 0.1)
    yield "marked, in stages", in_parts(checkpoint_steps.gpt2, IN_STAGES)
    yield "convolutions, batch-norm and dropout", whole(recipe_steps.vgg, "zero3", 0)
    yield "marked, hybrid on 2x2", whole(checkpoint_steps.gpt2, HYBRID, mesh="2x2")


CASES = dict(cases())


results = results_of(CASES)


INTERPRETED = ("dropout, accumulated", "marked, in stages")
"""Cases of the interpreter, which run on ranks only with `--thorough`."""

THOROUGH = {*INTERPRETED, "dropout, dp, none kept", "dropout, tp, none kept", "marked, zero3"}
"""Cases that run on ranks only with `--thorough`: the hybrid has both presets, and another plan the marks."""


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names_of(CASES, lambda name: name not in THOROUGH))
def test_a_recomputed_program_trains_as_one_device(name: str, results: Callable[[str], CheckResult]):
    result = results(name)
    assert result.passed, str(result)


@pytest.mark.parametrize("name", INTERPRETED)
def test_recomputation_is_right_before_lowering(name: str):
    result = check_interpreted(replace(CASES[name], steps=2))
    assert result.passed, str(result)


@pytest.mark.parametrize("pins", ["dp", "zero3"])
def test_recomputation_adds_compute_and_lowers_peak_memory(pins: str):
    plans = [whole(recipe_steps.gpt2, pins, keep) for keep in (1, 0)]
    kept, again = (compile_case(plan, imported(plan)).report for plan in plans)
    assert again["predicted_compute_s"] > kept["predicted_compute_s"]
    assert again["peak"]["bytes"] < kept["peak"]["bytes"]


def test_a_checkpoint_in_the_model_is_a_region_of_its_program():
    asked = whole(checkpoint_steps.gpt2, "dp")
    again = [op for op in compile_case(asked, imported(asked)).module.walk() if RECOMPUTED in op.attributes]
    assert sum(op.name == "aten.addmm" for op in again) >= 2 * 4, "both blocks, reentrant or not"
