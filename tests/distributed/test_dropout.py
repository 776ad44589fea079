"""
Models with dropout train as one device does that draws the same numbers: under any split of space and of time.

One launch of four ranks runs all cases on gloo. The cluster makes splitting pay, so that the dropouts of
searched plans are split too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import dropout_steps
import pytest
import torch
from split_cluster import split_cluster

from shardwright.api.check import (
    SEED,
    CheckCase,
    CheckResult,
    check_interpreted,
    check_on_ranks,
    compile_case,
    imported,
    plan_case,
)
from shardwright.api.interpreted import InterpretedRun
from shardwright.api.reference import EagerRun
from shardwright.ir.mesh import parse_mesh

HYBRID = Path(__file__).parents[1] / "support" / "hybrid_pins.toml"
HEAD, TAIL = "decompose-mean,canonicalize,cse,dce", "overlap,check-memory,insert-frees"
UNEVEN = 'search-strategy,balance-ratios{ratios="0.4,0.3,0.2,0.1"}'
MIXED = f'search-strategy{{algorithm=fixed pins="{HYBRID}"}},balance-ratios{{ratios="0.6,0.4" axis="a0"}}'
BOTH = "split-batch{parts=2},insert-resharding,select-collectives,duplex"
FOUR = "split-batch{parts=4},insert-resharding,select-collectives,accumulate"
STAGES = (
    'partition-stages{stages=2 ranks="2,2"},search-strategy,split-batch{parts=4},insert-resharding,select-collectives,'
    "overlap,schedule-pipeline{schedule=1f1b axis=micro},plan-transfers,check-memory,insert-frees"
)
FORMS: dict[str, str | None] = {
    "searched": None,
    "uneven": f"{HEAD},{UNEVEN},insert-resharding,select-collectives,{TAIL}",
    "duplex": f"{HEAD},search-strategy,{BOTH},{TAIL}",
    "accumulated, uneven": f"{HEAD},{UNEVEN},{FOUR},{TAIL}",
    "duplex, both axes, uneven": f"{HEAD},{MIXED},{BOTH},{TAIL}",
    "pipeline": f"{HEAD},{STAGES}",
}
PRECISIONS = {"float32": (torch.float32, "sgd"), "float64": (torch.float64, "adamw")}
NAMES = (
    ("gpt2", "4", "pipeline", "float32"),
    ("gpt2", "4", "accumulated, uneven", "float64"),
    ("bert", "4", "uneven", "float32"),
    ("bert", "2x2", "duplex, both axes, uneven", "float64"),
    ("vit", "2x2", "searched", "float32"),
    ("noisy", "4", "uneven", "float64"),
)
INTERPRETED = (("gpt2", "2", "duplex", "float64"), ("noisy", "4", "uneven", "float64"))



def case(model: str, mesh: str, form: str, precision: str) -> CheckCase:
    parsed, (dtype, optimizer) = parse_mesh(mesh), PRECISIONS[precision]
    step, cluster = getattr(dropout_steps, model), split_cluster(parsed)
    return CheckCase(step, parsed, None, dtype, optimizer, steps=3, cluster=cluster, pipeline=FORMS[form])


CASES = {", ".join(name): case(*name) for name in NAMES}


@cache
def results() -> Mapping[str, CheckResult]:
    return dict(zip(CASES, check_on_ranks(list(CASES.values()), 4), strict=True))


@pytest.mark.distributed
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_a_model_with_dropout_trains_as_one_device_does(name: str):
    assert results()[name].passed, str(results()[name])


@pytest.mark.parametrize("name", INTERPRETED, ids=", ".join)
def test_the_interpreter_agrees(name: tuple[str, str, str, str]):
    result = check_interpreted(replace(case(*name), steps=2))
    assert result.passed, str(result)


def test_independent_draws_agree_on_copies_of_a_part():
    """Ranks that hold the same part must; and the loss is about that of one device, of other numbers."""
    drawn = case("gpt2", "2x2", "duplex, both axes, uneven", "float64")
    drawn = replace(drawn, pipeline=f"draw-independently,{drawn.pipeline}", steps=1)
    module = imported(drawn)
    plan_case(drawn, module)
    found = InterpretedRun(module, EagerRun(drawn.training_step(), drawn.dtype, SEED).model, SEED)
    expected = EagerRun(drawn.training_step(), drawn.dtype, SEED)
    (batch,) = drawn.batches()
    loss, one = (run.step(batch)["loss", "loss"].item() for run in (found, expected))
    assert loss != one
    assert loss == pytest.approx(one, rel=0.05)


def test_programs_draw_parts():
    """Or the cases above would compare less than they say."""
    split = CASES["gpt2, 4, accumulated, uneven, float64"]
    program = compile_case(split, imported(split))
    assert re.search(r"rt\.random_dropout\([^)]*start=SIZES\[[^\]]*\]\[n\]\[part\]", program.program)
