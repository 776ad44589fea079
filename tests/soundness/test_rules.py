"""
Every rule of the op table is a theorem, checked on numbers.

Each signature of each sample runs on the simulated ranks of several meshes, with even splits (also of 6 over
4) and with boundaries that leave a part empty, and must give what one device gives.
"""

from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch
from ir_files import context, parse
from op_samples import UNDEFINED, op_samples
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.compute import SIGNATURE, ComputeOp
from shardwright.dialects.mesh_ops import MeshOp
from shardwright.dialects.sharding_attrs import SignatureAttr
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops.table import op_table
from shardwright.ir.rules import Rule
from shardwright.ir.signatures import Signature, Split, choices, explain_mismatch, signature, signatures
from shardwright.lowering.interpreter import find_function, interpret
from shardwright.lowering.interpreter_errors import InterpreterError
from shardwright.lowering.random_inputs import random_inputs

_MESHES = (Mesh.of(x=2), Mesh.of(x=3), Mesh.of(x=4), Mesh.of(x=2, y=2))
_CONTEXT = context()
_SAMPLES: dict[str, list[str]] = defaultdict(list)
for _each in op_samples():
    _SAMPLES[_each.overload].append(_each.module)


def test_every_row_has_a_sample():
    assert set(_SAMPLES) == set(op_table())


def uneven_signatures(rule: Rule, mesh: Mesh) -> Iterator[Signature]:
    """Yield, for each factor, a split whose second part is empty, where the op can run on empty parts."""
    for choice in choices(rule):
        if isinstance(choice, Split):
            size = rule.sizes[choice.factor]
            found = signature(rule, mesh, (choice,), {choice.factor: (0, size // 2, size // 2, size)})
            if found is not None:
                yield found


def prepared(text: str, mesh: Mesh) -> tuple[ModuleOp, ComputeOp]:
    """Return the module in `text` with a mesh put in, and its one op."""
    module = parse(text, _CONTEXT)
    module.body.block.insert_ops_before([MeshOp(mesh)], find_function(module))
    return module, next(op for op in module.walk() if isinstance(op, ComputeOp))


def first_fault(text: str, mesh: Mesh) -> str | None:
    """Return what is wrong with the first signature that does not compute what one device computes."""
    module, op = prepared(text, mesh)
    inputs = random_inputs(find_function(module))
    expected = interpret(module, inputs)
    rule, defined = op.rule(), op.overload not in UNDEFINED
    uneven = uneven_signatures(rule, mesh) if mesh.device_count == 3 else ()
    for found in dict.fromkeys((*signatures(rule, mesh), *uneven)):
        assert explain_mismatch(rule, found, mesh) is None
        op.attributes[SIGNATURE] = SignatureAttr.of(mesh.name, found)
        try:
            results = interpret(module, inputs, check_replicas=defined)
        except InterpreterError as error:
            return f"{text}\non {mesh}: {found}: {error}"
        if not all(map(equal if defined else alike, results, expected)):
            return f"{text}\non {mesh}: {found}: another result"
    return None


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    tolerance = 1e-5 if one.dtype == torch.float32 else 1e-10
    return alike(one, other) and torch.allclose(one, other, tolerance, tolerance, equal_nan=True)


@pytest.mark.parametrize("overload", op_table())
def test_every_signature_computes_what_one_device_computes(overload: str):
    for text in _SAMPLES[overload]:
        for mesh in _MESHES:
            assert (fault := first_fault(text, mesh)) is None, fault


@pytest.mark.parametrize(
    ("target", "rule", "types"),
    [
        ("relu.default", "([i, k]) -> ([i, k]) linear={0}", ["6x5", "6x5"]),
        ("mm.default", "([i, k], [k, j]) -> ([i, j])", ["6x5", "5x4", "6x4"]),
        ("addmm.default", "([j], [i, k], [k, j]) -> ([i, j]) reduction={k}", ["4", "6x5", "5x4", "6x4"]),
        ("addmm.default", "([j], [i, k], [k, j]) -> ([i, j]) linear={1}", ["4", "6x5", "5x4", "6x4"]),
        ("mm.default", "([i, k], [k, j]) -> ([i, j]) reduction={k} linear={0+1}", ["6x5", "5x4", "6x4"]),
        ("add.Tensor", "([i], [i]) -> ([i]) linear={0, 1}", ["6", "6", "6"]),
        ("t.default", "([i, j]) -> ([i, j])", ["6x6", "6x6"]),
        ("var.correction", "([i, k]) -> ([i]) reduction={max k}", ["6x5", "6"]),
    ],
)
def test_a_wrong_rule_is_noticed(target: str, rule: str, types: list[str]):
    tensors = [f"tensor<{shape}xf64>" for shape in types]
    arguments = ", ".join(f'%x{i}: {t} {{train.batch = "x"}}' for i, t in enumerate(tensors[:-1]))
    operands = ", ".join(f"%x{i}" for i in range(len(types) - 1))
    dims = "dim = [1], " if target.startswith("var") else ""
    text = f"""
func.func @op({arguments}) -> {tensors[-1]} {{
  %y = aten.opaque "aten::{target}" {operands} {{{dims}spmd.rule = #spmd.rule<"{rule}">}}
    : ({", ".join(tensors[:-1])}) -> {tensors[-1]}
  func.return %y : {tensors[-1]}
}}"""
    assert any(first_fault(text, mesh) for mesh in _MESHES)
