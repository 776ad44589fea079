"""
In mixed precision programs are as near to one device as one device is to itself in another order of its sums.

A gradient of a weight is rounded to bfloat16 before it is added to another, on one device where a batch is accumulated,
on several where it is split. How far that leads is seen on one device that goes through every batch in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
import recipe_steps
import torch
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
PLANS: tuple[tuple[str, str | None, ReduceDtype | None], ...] = (
    *((name, pins, None) for name in STEPS for pins in PINS),
    ("vit", "dp", "bfloat16"),
    ("vit", "zero3", "bfloat16"),
    ("vit", None, "float32"),
)
"""Steps, pins, and the dtype in which gradients are reduced, where it is not left to the search and the presets."""

MARGIN = 3.0
"""How many times as far as other orders lead a program may be: its order is one more."""

PARTS = (2, 4, 8)
"""Into how many parts a batch is cut: the furthest that one of these orders leads is less a matter of luck than one."""


def case(name: str, pins: str | None, reduce_dtype: ReduceDtype | None = None) -> CheckCase:
    mesh = parse_mesh("2")
    make = partial(recipe_steps.reducing_in, STEPS[name], reduce_dtype)
    return CheckCase(make, mesh, pins, torch.float32, "sgd", cluster=split_cluster(mesh))


def in_parts(make: Callable[[], nn.Module], parts: int) -> nn.Module:
    """A model that goes through its batch in parts, so that gradients of weights are several, each rounded."""
    model = make()
    whole = model.forward

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([whole(part) for part in inputs.chunk(parts)])

    model.forward = forward
    return model


@cache
def reordered(name: str) -> dict[str, float]:
    """By kind of value, how far one device is from itself where it goes through the batch in parts."""
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
def results() -> dict[tuple[str, str | None, ReduceDtype | None], CheckResult]:
    return dict(zip(PLANS, check_on_ranks([case(*plan) for plan in PLANS], 2, tolerance=1.0), strict=True))


@pytest.mark.distributed
@pytest.mark.parametrize(("name", "pins", "reduce_dtype"), PLANS)
def test_a_program_is_as_near_as_another_order_of_sums(
    name: str,
    pins: str | None,
    reduce_dtype: ReduceDtype | None,
    results: dict[tuple[str, str | None, ReduceDtype | None], CheckResult],
):
    result = results[name, pins, reduce_dtype]
    assert not result.message, result.message
    for worst in result.errors:
        assert worst.error <= MARGIN * reordered(name)[worst.kind], (str(result), reordered(name))


@pytest.mark.parametrize("name", STEPS)
def test_split_weights_are_gathered_in_bfloat16(name: str):
    """All matrices but those that ops in float32 use, tables of embeddings."""
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
