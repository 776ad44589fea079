"""`train.reduce_dtype`: presets, strategies and whole plans reduce gradients in the dtype of the step."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import recipe_steps
import torch
from launches import covering, step_of
from split_cluster import split_cluster
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import OpResult, SSAValue

from shardwright.api.checking.cases import CheckCase, compile_case, imported
from shardwright.api.compile import PlanAlgorithm
from shardwright.api.training_step import TrainingStep
from shardwright.dialects import train
from shardwright.dialects.compute import ComputeOp, dtype_of
from shardwright.dialects.spmd import CollectiveOp, WaitOp
from shardwright.ir.mesh import parse_mesh
from shardwright.lowering.capture.calling import ReduceDtype
from shardwright.passes.analysis.compute import is_cast, spec_of
from shardwright.passes.errors import OpFailure
from shardwright.passes.step.step_view import step_functions

REDUCING = ("all_reduce", "reduce_scatter")


def step(reduce_dtype: ReduceDtype | None) -> TrainingStep:
    return replace(recipe_steps.mixed_gpt2(), reduce_dtype=reduce_dtype)


def planned(pins: str | None, reduce_dtype: ReduceDtype | None, algorithm: PlanAlgorithm | None = None) -> ModuleOp:
    mesh = parse_mesh("2")
    case = CheckCase(
        step_of(step, reduce_dtype), mesh, pins, torch.float32, "sgd", cluster=split_cluster(mesh), algorithm=algorithm
    )
    return compile_case(case, imported(case)).module


def gradients(func: FuncOp) -> Iterator[SSAValue]:
    for op in func.body.block.ops:
        yield from (op.operands[at] for at in train.gradients_of(op))


def reduced_values(gradient: SSAValue) -> tuple[list[SSAValue], bool]:
    """Return the values that collectives reduce between a gradient and its update, and whether there is a cast."""
    found: list[SSAValue] = []
    value, is_widened = gradient, False
    while isinstance(value, OpResult):
        op = value.op
        if isinstance(op, WaitOp):
            value, kind = op.start.args[value.index], op.start.kind.data
        elif isinstance(op, CollectiveOp):
            value, kind = op.operands[0], op.KIND.value
        elif isinstance(op, ComputeOp) and (is_cast(op) or spec_of(op).view):
            value, kind, is_widened = op.args[0], "", is_widened or is_cast(op)
        else:
            break
        found += [value] if kind in REDUCING else []
    return found, is_widened


def reduced_dtypes(module: ModuleOp) -> set[str]:
    """Return the dtypes of reductions of the gradients that are cast before their update."""
    (func,) = step_functions(module)
    walked = map(reduced_values, gradients(func))
    return {dtype_of(value) for found, is_widened in walked if is_widened for value in found}


@pytest.mark.parametrize(("pins", "dtype"), covering(["dp", "zero1", "zero3", None], ["float32", "bfloat16"]))
def test_gradients_are_reduced_in_the_given_dtype(pins: str | None, dtype: ReduceDtype):
    assert reduced_dtypes(planned(pins, dtype)) == {dtype}


def test_by_default_the_search_reduces_narrow_values_and_presets_wide_ones():
    assert reduced_dtypes(planned(None, None)) == {"bfloat16"}
    assert reduced_dtypes(planned("zero3", None)) == {"float32"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_whole_plans_reduce_in_the_given_dtype(dtype: ReduceDtype):
    module = planned(None, dtype, algorithm="auto")
    assert reduced_dtypes(module) == {dtype}


def test_a_step_without_narrow_gradients_is_refused():
    plain = replace(recipe_steps.gpt2(), reduce_dtype="float32")
    with pytest.raises(OpFailure, match="none is cast to a wider dtype; leave it out"):
        imported(CheckCase(lambda: plain, parse_mesh("2")))
