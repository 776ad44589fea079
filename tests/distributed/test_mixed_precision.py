"""
Programs in mixed precision differ from one device by no more than another summation order on one device does.

Gradients of a weight are rounded to bfloat16 before they are added, over micro-batches or over devices. The size of
this error is measured on one device that computes every batch in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
import recipe_steps
import torch
from launches import names_of, step_of
from split_cluster import split_cluster
from torch import nn

from shardwright.api.checking.cases import SEED, CheckCase, CheckResult, compile_case, imported
from shardwright.api.checking.check import check_on_ranks
from shardwright.api.checking.comparison import Worst, largest, measure
from shardwright.api.checking.reference import EagerRun
from shardwright.dialects.compute import ComputeOp, dtype_of, shape_of
from shardwright.dialects.spmd import StartOp
from shardwright.ir.mesh import parse_mesh
from shardwright.lowering.capture.calling import ReduceDtype

STEPS = {"gpt2": recipe_steps.mixed_gpt2, "vit": recipe_steps.mixed_vit}
PINS = ("dp", "zero3", "tp", None)
Plan = tuple[str, str | None, ReduceDtype | None]
PLANS: tuple[Plan, ...] = (
    *((name, pins, None) for name in STEPS for pins in PINS),
    ("vit", "dp", "bfloat16"),
    ("vit", "zero3", "bfloat16"),
    ("vit", None, "float32"),
)
"""Steps, pins, and the dtype of gradient reductions, None for the default of searches and presets."""

ALWAYS: set[Plan] = {
    ("gpt2", "dp", None),
    ("gpt2", "tp", None),
    ("vit", "zero3", None),
    ("vit", None, None),
    ("vit", "zero3", "bfloat16"),
    ("vit", None, "float32"),
}
"""Plans that run without `--thorough`: every step, all pins and every dtype."""

MARGIN = 3.0
"""The allowed error relative to the errors of other summation orders; the program's order is one more."""

PARTS = (2, 4, 8)
"""Numbers of parts of a batch: the largest error of several orders is more stable than the error of one."""


def case(name: str, pins: str | None, reduce_dtype: ReduceDtype | None = None) -> CheckCase:
    mesh = parse_mesh("2")
    return CheckCase(
        step_of(recipe_steps.reducing_in, STEPS[name], reduce_dtype),
        mesh,
        pins,
        torch.float32,
        "sgd",
        cluster=split_cluster(mesh),
    )


def in_parts(make: Callable[[], nn.Module], parts: int) -> nn.Module:
    """Return a model that computes its batch in parts, so that several rounded gradients of a weight are added."""
    model = make()
    whole = model.forward

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([whole(part) for part in inputs.chunk(parts)])

    model.forward = forward
    return model


@cache
def reordered(name: str) -> dict[str, float]:
    """Return the errors of one device that computes the batch in parts, by kind of value."""
    given = case(name, None)
    step = given.training_step()
    one = EagerRun(step, given.dtype, SEED)
    models = (partial(in_parts, step.build_model, parts) for parts in PARTS)
    others = [EagerRun(replace(step, model=model), given.dtype, SEED) for model in models]
    worst: tuple[Worst, ...] = ()
    for number, batch in enumerate(given.batches(), 1):
        expected = one.step(batch)
        for other in others:
            worst = (*worst, *measure(other.step(batch), expected, number).values())
    return {kind: each.error for kind, each in largest(worst).items()}


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> dict[Plan, CheckResult]:
    """Return the results of the plans that this session tests, by plan."""
    plans = PLANS if request.config.getoption("--thorough") else tuple(plan for plan in PLANS if plan in ALWAYS)
    return dict(zip(plans, check_on_ranks([case(*plan) for plan in plans], 2, tolerance=1.0), strict=True))


@pytest.mark.distributed
@pytest.mark.parametrize(("name", "pins", "reduce_dtype"), names_of(PLANS, ALWAYS.__contains__))
def test_the_error_of_a_program_is_like_that_of_another_summation_order(
    name: str, pins: str | None, reduce_dtype: ReduceDtype | None, results: dict[Plan, CheckResult]
):
    result = results[name, pins, reduce_dtype]
    assert not result.message, result.message
    for worst in result.errors:
        assert worst.error <= MARGIN * reordered(name)[worst.kind], (str(result), reordered(name))


@pytest.mark.parametrize("name", STEPS)
def test_split_weights_are_gathered_in_bfloat16(name: str):
    """All matrices are gathered in bfloat16, except embedding tables, which ops in float32 use."""
    given = case(name, "zero3")
    module = compile_case(given, imported(given)).module
    starts = [op for op in module.walk() if isinstance(op, StartOp) and op.kind.data == "all_gather"]
    gathered = [value for op in starts for value in op.args if len(shape_of(value)) > 1]
    wide = [value.name_hint or "" for value in gathered if dtype_of(value) == "float32"]
    assert len(gathered) > 2 * len(wide)
    assert not [name for name in wide if "attn" in name or "mlp" in name]


@pytest.mark.parametrize("name", STEPS)
def test_updates_are_in_float32_and_products_in_bfloat16(name: str):
    given = case(name, "dp")
    module = imported(given)
    element = {op.name: set[str]() for op in module.walk()}
    for op in module.walk():
        if isinstance(op, ComputeOp):
            element[op.name].add(dtype_of(op.outs[0]))
    assert element["train.sgd"] == {"float32"}
    assert element["aten.mm"] == element["aten.addmm"] == {"bfloat16"}
    assert element["aten.native_layer_norm"] == {"float32"}
    assert "bfloat16" in compile_case(given, module).program
