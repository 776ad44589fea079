"""Rules and torch give the same result dtypes for every sample in `op_samples.txt`."""

from collections.abc import Iterator

import pytest
import torch
from ir_files import context
from op_samples import op_samples
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, i64

from shardwright.dialects.aten import AtenOp
from shardwright.dialects.compute import dtype_of, shape_of
from shardwright.dialects.text import parse_module
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops.dtypes import TypedOperand, promoted, result_dtypes
from shardwright.lowering.calls.calls import Call, call_of
from shardwright.lowering.calls.local_calls import make_call

VALUES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64")
FLOATS = VALUES[:4]
SAMPLES: dict[str, list[str]] = {}
for _each in op_samples():
    SAMPLES.setdefault(_each.overload, []).append(_each.module)


def ops(overload: str) -> Iterator[AtenOp]:
    """Yield the samples of an op; a sample with a float argument also with a whole number."""
    for text in SAMPLES[overload]:
        op = next(op for op in parse_module(context(), text).walk() if isinstance(op, AtenOp))
        yield op
        for name in ("other", "min", "max", "exponent", "self", "fill_value"):
            if isinstance(op.attributes.get(name), FloatAttr):
                op.attributes[name] = IntegerAttr(2, i64)
                yield op


def dtypes(op: AtenOp) -> Iterator[list[str]]:
    """Yield dtypes of operands: all of one dtype, or one operand of another; operands of fused ops are floats."""
    base = [dtype_of(value) for value in op.args]
    values = [at for at, dtype in enumerate(base) if dtype in ("float64", "float32", "complex128")]
    is_fused = op.spec.arguments is not None
    for dtype in FLOATS if is_fused else VALUES:
        for one in (None, *(values if len(values) > 1 and not is_fused else ())):
            for other in (dtype,) if one is None else ("float32", "bfloat16", "int32"):
                yield [(dtype if one in (None, at) else other) if at in values else base[at] for at in range(len(base))]


def found(op: AtenOp, call: Call, given: list[str]) -> list[str | None] | None:
    """Return the dtypes of torch's results; None if torch raises an error."""
    typed = [(shape_of(value), getattr(torch, dtype)) for value, dtype in zip(op.args, given, strict=True)]
    changed = [dtype_of(value) != dtype for value, dtype in zip(op.args, given, strict=True)]
    operands = [
        torch.ones(shape, dtype=dtype) if dtype.is_floating_point or other else torch.zeros(shape, dtype=dtype)
        for (shape, dtype), other in zip(typed, changed, strict=True)
    ]
    try:
        results = make_call(call, operands)
    except (RuntimeError, TypeError, IndexError, ValueError, AssertionError, KeyError, NotImplementedError):
        return None
    return [None if result is None else str(result.dtype).removeprefix("torch.") for result in results]


@pytest.mark.parametrize("overload", sorted(SAMPLES))
def test_results_have_the_dtypes_of_torch(overload: str):
    for op in ops(overload):
        call = call_of(op, Mesh.of(gpu=1), 0)
        for given in dtypes(op):
            names = zip(op.operand_names(), given, op.args, strict=True)
            operands = [TypedOperand(name, dtype, bool(shape_of(value))) for name, dtype, value in names]
            if (torchs := found(op, call, given)) is None:
                continue
            if overload == "addmv" and len(set(given)) > 1 and torch.__version__ < "2.12":
                continue  # torch 2.11 accepts operands of several dtypes and returns wrong numbers.
            ours = result_dtypes(overload, operands, op.arguments(), len(op.outs))
            for own, expected in zip(ours, torchs, strict=True):
                assert own in (None, expected) or expected is None, (given, op.arguments())


@pytest.mark.parametrize("one", [*VALUES, "int8", "int16", "complex128"])
def test_type_promotion_equals_torch(one: str):
    for other in (*VALUES, "int8", "int16", "complex128"):
        for dims in ((3,), ()):
            tensors = torch.ones(3, dtype=getattr(torch, one)), torch.ones(dims, dtype=getattr(torch, other))
            expected = str(torch.result_type(*tensors)).removeprefix("torch.")
            if expected != "complex32":
                given = [TypedOperand("self", one), TypedOperand("other", other, bool(dims))]
                assert promoted(given) == expected, other
    for number in (True, 2, 2.0):
        expected = str(torch.result_type(torch.ones(3, dtype=getattr(torch, one)), number)).removeprefix("torch.")
        assert promoted([TypedOperand("self", one)], [number]) == expected
