"""The verifier has the schemas of the installed torch, and of the functions of fused ops."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from shardwright.ir.ops.schema import _WORDS, SCHEMAS, TENSOR, Argument, arguments_of, parse_arguments
from shardwright.ir.ops.table import op_table
from shardwright.lowering.fused.table import FUSED_OPS
from shardwright.tools.schemas import schemas_text

FUSED = {name: op.definition for name, op in FUSED_OPS.items()}
KINDS = {
    "torch.Tensor": TENSOR,
    "torch.Tensor | float": TENSOR,
    "torch.dtype": "ScalarType",
    "_Shape": "SymInt",
    "Sequence[bool]": "bool",
}


def test_the_file_holds_the_schemas_of_the_installed_torch():
    assert SCHEMAS.read_text() == schemas_text(), "python -m shardwright.tools.schemas writes it again"


def test_every_op_of_the_table_has_a_schema_with_its_operands():
    for name, spec in op_table().items():
        known = arguments_of(name)
        assert known is not None, name
        tensors = [each.name for each in known.values() if each.kind == TENSOR]
        assert set(tensors) == {operand.lstrip("*") for operand in spec.operands}, name


def test_rows_of_fused_ops_have_the_arguments_of_their_functions():
    rows = {name for name, spec in op_table().items() if spec.arguments is not None}
    assert rows == set(FUSED)
    for name, function in FUSED.items():
        known = arguments_of(name)
        assert known is not None
        localize = op_table()[name].localize or {}
        given = inspect.signature(function).parameters.values()
        expected = {p.name: p for p in given if "." not in localize.get(p.name, "") and p.name != "part"}
        assert set(known) == set(expected), name
        for argument in known.values():
            annotation = str(expected[argument.name].annotation)
            plain = annotation.removesuffix(" | None")
            assert argument.kind == KINDS.get(plain, plain), (name, argument)
            assert argument.kind != TENSOR or argument.optional == annotation.endswith("| None"), (name, argument)


def test_allowed_words_are_the_ones_torch_accepts():
    x = torch.rand(3, 3)
    index = torch.zeros(3, 3, dtype=torch.int64)
    aten = torch.ops.aten
    calls: dict[str, Callable[[str], Any]] = {
        "gelu": lambda word: aten.gelu(x, approximate=word),
        "gelu_backward": lambda word: aten.gelu_backward(x, x, approximate=word),
        "div": lambda word: aten.div.Tensor_mode(x, x, rounding_mode=word),
        "scatter": lambda word: aten.scatter.reduce(x, 0, index, x, reduce=word),
        "scatter_reduce": lambda word: aten.scatter_reduce.two(x, 0, index, x, reduce=word),
        "index_reduce": lambda word: aten.index_reduce(x, 0, index[0], x, reduce=word),
        "searchsorted": lambda word: aten.searchsorted.Tensor(x, x, side=word),
        "linalg_qr": lambda word: aten.linalg_qr(x, word),
        "_linalg_eigh": lambda word: aten._linalg_eigh(x, word),
    }
    for name, call in calls.items():
        (words,) = _WORDS[name].values()
        for word in words:
            call(word)
        with pytest.raises(RuntimeError):
            call("banana")


def test_schemas_are_parsed_in_torchs_notation():
    text = "Tensor(a) self, Tensor?[] indices, int[1]? dim, bool[2] mask, SymInt[2] stride=[1, 1], *, float? scale=None"
    assert list(parse_arguments(text)) == [
        Argument("self", "Tensor"),
        Argument("indices", "Tensor", is_list=True),
        Argument("dim", "int", is_list=True, optional=True, required=False),
        Argument("mask", "bool", is_list=True),
        Argument("stride", "SymInt", is_list=True, required=False),
        Argument("scale", "float", optional=True, required=False),
    ]
    with pytest.raises(ValueError, match="no argument of a schema"):
        list(parse_arguments("Tensor"))
