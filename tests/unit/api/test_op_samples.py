"""Ops to measure: their operands, and the calls that run them."""

import io
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import StringAttr
from xdsl.printer import Printer

from shardwright.api.calibration.local_cluster import generic_cluster
from shardwright.api.calibration.op_families import family_samples
from shardwright.api.calibration.op_samples import PlanFileError, ops_of_plans, samples_of_plan
from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.steps import find_step
from shardwright.runtime.profile.samples import TensorSpec, arena_for, callable_of


def test_families_rise_in_size_and_run():
    quick = family_samples(("float32",), quick=True)
    assert {each.work.key for each in quick} < {each.work.key for each in family_samples(("float32",))}
    families = {"contractions", "elementwise", "reductions", "normalisation", "attention", "windows", "indexing"}
    assert {each.work.family for each in quick} >= families | {"losses", "update", "copy", "random"}
    small = [each for each in quick if each.work.bytes < 1e5]
    arena = arena_for(small, torch.device("cpu"))
    for each in small:
        callable_of(each, arena)()


@pytest.mark.parametrize("before", ['gpu"]}; ', '"""\n', "\\"])
def test_names_in_a_plan_are_not_executed_when_its_ops_are_measured(before: str, tmp_path: Path):
    marker = tmp_path / "ran"
    code = f"{before}__import__('pathlib').Path({str(marker)!r}).touch() #"
    compile_step(find_step("mlp-tiny"), generic_cluster(2)).save(tmp_path / "plan")
    text = (tmp_path / "plan" / "step.mlir").read_text()
    assert '"gpu"' in text
    hostile = StringAttr(code)
    printed = io.StringIO()
    Printer(printed).print_attribute(hostile)
    (tmp_path / "plan" / "step.mlir").write_text(text.replace('"gpu"', printed.getvalue()))

    with pytest.raises(PlanFileError, match="has a bad name, expected ASCII letters"):
        ops_of_plans([str(tmp_path / "plan")], None)
    assert not marker.exists()
    (tmp_path / "plan" / "step.mlir").write_text("func.func @step() { func.return %nothing : f32 }")
    with pytest.raises(PlanFileError, match="is not a plan"):
        ops_of_plans([str(tmp_path / "plan")], None)


def test_updates_write_to_copies():
    sample = next(each for each in family_samples(("float32",), quick=True) if each.work.key.startswith("train.adamw"))
    arena = arena_for([sample], torch.device("cpu"))
    before = arena.operands(sample)
    callable_of(sample, arena)()
    assert all(torch.equal(a, b) for a, b in zip(before, arena.operands(sample), strict=True))


def test_samples_of_a_plan_have_local_shapes_and_valid_indices():
    module = compile_step(find_step("gpt2-tiny"), generic_cluster(2), PlanOptions("fixed", "tp")).module
    samples = samples_of_plan(module)
    arena = arena_for(samples, torch.device("cpu"))
    for each in samples:
        callable_of(each, arena)()
    embeddings = [each for each in samples if each.work.key.startswith("embedding(")]
    assert embeddings
    for each in embeddings:
        table, index = each.operands
        assert isinstance(table, TensorSpec)
        assert index.high == table.shape[0]
