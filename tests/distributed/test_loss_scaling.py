"""
Programs with a scaled loss train as `torch.amp.GradScaler` does on one device, and skip the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import recipe_steps
import torch
from launches import names_of, results_of, step_of
from split_cluster import split_cluster

from shardwright.api.checking.cases import SEED, CheckCase, CheckResult
from shardwright.api.checking.reference import EagerRun
from shardwright.ir.mesh import parse_mesh
from shardwright.passes.scale_loss import SCALE

ACCUMULATED = "prepare,search-strategy,program{parts=4},finish"
IN_STAGES = "prepare,partition-stages{stages=2},search-strategy,program{mode=pipeline parts=4 schedule=1f1b},finish"
STEPS = 7
CLOSE = 5e-3
"""A few roundings to float16; an update that should have been skipped makes values infinite or NaN."""

SGD = partial(torch.optim.SGD, lr=1e-2, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=1e-3)
ASGD = partial(torch.optim.ASGD, lr=1e-2)


def case(
    optimizer: Callable[..., torch.optim.Optimizer], pins: str | None = None, pipeline: str | None = None
) -> CheckCase:
    mesh = parse_mesh("2")
    return CheckCase(
        step_of(recipe_steps.scaled_gpt2, optimizer),
        mesh,
        pins,
        steps=STEPS,
        cluster=split_cluster(mesh),
        pipeline=pipeline,
    )


CASES = {
    "dp": case(SGD, "dp"),
    "zero3": case(ADAMW, "zero3"),
    "tp": case(SGD, "tp"),
    "searched": case(ASGD),
    "accumulated": case(ASGD, pipeline=ACCUMULATED),
    "in stages": case(ADAMW, pipeline=IN_STAGES),
}

results = results_of(CASES)


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names_of(CASES, lambda name: name not in ("tp", "searched")))
def test_updates_are_skipped_as_on_one_device(name: str, results: Callable[[str], CheckResult]):
    result = results(name)
    assert not result.message, result.message
    # Gradients are not finite in some steps.
    errors = {worst.kind: worst.error for worst in result.errors if worst.kind != "gradient"}
    assert errors["metric"] == 0, str(result)
    assert {"loss", "metric"} < set(errors)
    assert max(errors.values()) < CLOSE, str(result)


def test_one_device_skips_the_first_steps_and_a_later_one():
    given = CASES["dp"]
    run = EagerRun(given.training_step(), given.dtype, SEED)
    scales = [run.step(batch)["metric", SCALE].item() for batch in given.batches()]
    assert [math.log2(scale) for scale in scales] == [22, 14, 14, 22, 14, 14, 22]
