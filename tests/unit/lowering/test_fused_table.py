"""Every fused op has a row, a runtime function with the same arguments, and the torch ops that it replaces."""

import inspect
from collections.abc import Callable, Iterator
from typing import get_args, get_type_hints

import pytest
import torch

from shardwright import runtime
from shardwright.ir.ops.table import op_table
from shardwright.lowering.fused.table import FUNCTIONS, FUSED_OPS, STANDING_FOR


@pytest.mark.parametrize("name", FUSED_OPS)
def test_a_fused_op_has_a_row_with_its_tensors(name: str):
    op = FUSED_OPS[name]
    row = [operand.lstrip("*") for operand in op_table()[name].operands]
    assert row == [parameter.name for parameter in op.parameters if parameter.is_tensor]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_runtime_has_a_function_of_that_name(name: str):
    assert callable(getattr(runtime, name))


def arguments(function: Callable[..., object]) -> Iterator[str]:
    """Yield the names of the arguments of a function, with the keys of a TypedDict in the place of `**`."""
    for argument in inspect.signature(function).parameters.values():
        if argument.kind is inspect.Parameter.VAR_KEYWORD:
            (keys,) = get_args(get_type_hints(function)[argument.name])
            yield from keys.__annotations__
        else:
            yield argument.name


@pytest.mark.parametrize("name", FUSED_OPS)
def test_the_runtime_function_has_the_same_arguments_and_maybe_a_device(name: str):
    fast = list(arguments(getattr(runtime, name)))
    told = ["device"] if FUSED_OPS[name].takes_device else []
    assert sorted(fast) == sorted([*(parameter.name for parameter in FUSED_OPS[name].parameters), *told])


@pytest.mark.parametrize("theirs", [name for name in STANDING_FOR if name.startswith("aten::")])
def test_replaced_ops_have_the_arguments_that_are_read(theirs: str):
    op, names = STANDING_FOR[theirs]
    schema = getattr(torch.ops.aten, theirs.removeprefix("aten::")).default._schema
    assert set(names) <= {argument.name for argument in schema.arguments}
    assert len(names) == len(op.parameters)
