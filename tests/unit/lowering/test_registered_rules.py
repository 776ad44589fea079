"""Rules that a user registers reach the IR, and shard the op."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from custom_ops import PRODUCT, doubled
from xdsl.dialects.builtin import ModuleOp

import shardwright as sw
from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.check import check_interpreted
from shardwright.api.compile import import_training_step
from shardwright.dialects.aten import OpaqueOp
from shardwright.dialects.text import module_text
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops.registered import unregister_rule
from shardwright.lowering.capture.captured import CaptureError
from shardwright.passes.analysis.coverage import coverage

MATMUL = "([i, k], [k, j]) -> ([i, j]) reduction={k}"


@contextmanager
def registered(op: str, rule: str, linear: tuple[str, ...] = ()) -> Iterator[None]:
    sw.register_rule(op, rule, linear=linear)
    try:
        yield
    finally:
        unregister_rule(op)


def opaque_rules(module: ModuleOp) -> set[str]:
    return {str(op.rule()) for op in module.walk() if isinstance(op, OpaqueOp)}


def test_the_ir_carries_the_rule_and_counts_it_as_registered():
    with registered(PRODUCT, MATMUL, linear=("0", "1")):
        module = import_training_step(doubled())
    text = module_text(module)
    assert text.count('aten.opaque "odd::product.default"') == 5
    assert text.count(f'spmd.rule = #spmd.rule<"{MATMUL} linear={{0, 1}}">') == 5
    found = coverage(module)
    assert (found["replicated"], found["inferred"], found["registered"]) == ({}, {}, {"odd::product.default": 5})
    assert found["tensor_ops"] > 10


def test_an_op_without_a_rule_is_counted_as_replicated():
    found = coverage(import_training_step(doubled(), probe=False))
    assert found["replicated"] == {"odd::product.default": 5}


@pytest.mark.parametrize("pins", ["dp", "zero3"])
def test_a_registered_op_trains_sharded_as_on_one_device(pins: str):
    with registered(PRODUCT, MATMUL):
        result = check_interpreted(CheckCase(doubled, Mesh.of(x=3), pins, torch.float64, "sgd", steps=2))
    assert result.passed, str(result)


def test_a_rule_for_a_row_of_the_table_replaces_it():
    with registered("aten::tanh", "([i, j]) -> ([i, j]) replicated={j}"):
        module = import_training_step(doubled(), probe=False)
    assert "([i, j]) -> ([i, j]) {i=8, j=12} replicated={j}" in opaque_rules(module)
    assert "aten.tanh " not in module_text(module)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("([i]) -> ([i])", r"custom_ops.py:\d+ .*odd::product.default is called with \[8, 6\], \[6, 12\] -> \[8, 12\]"),
        ("([i, k], [j, k]) -> ([i, j])", r"odd::product.default does not fit the registered rule: .*factor k is 6"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused_with_the_place(rule: str, message: str):
    with registered(PRODUCT, rule), pytest.raises(CaptureError, match=message):
        import_training_step(doubled())


@pytest.mark.parametrize(
    ("op", "rule", "message"),
    [
        ("product", MATMUL, "'product' is not the name of an op; expected a form like mylib::op"),
        ("odd::product", "([i, k) -> ([i])", "is not a list of values"),
        ("odd::product", "([i]) ([i])", "is not of the form"),
        ("odd::product", "([i]) -> ([i]) reduction={k}", "refers to factor k, which no operand or result has"),
        ("odd::product", "([i, k]) -> ([i]) reduction={mean k}", "unknown reduction 'mean', expected one of"),
        ("odd::product", "([i, i]) -> ([i])", r"factor i is twice in \[i, i\], expected once"),
        ("odd::product", "([i]) -> ([i]) linear={1}", "linear operand 1, expected a number from 0 to 0"),
    ],
)
def test_a_malformed_rule_is_refused_at_once(op: str, rule: str, message: str):
    with pytest.raises(ValueError, match=message):
        sw.register_rule(op, rule)
