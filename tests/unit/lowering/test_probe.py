"""Rules of unknown ops are inferred from their results, and wrong rules are not."""

import json
import logging
import os
import time
from pathlib import Path

import custom_ops
import pytest
import torch
from custom_ops import doubled, windowed
from split_cluster import split_cluster
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException

from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.check import check_interpreted
from shardwright.api.checking.interpreted import InterpretedRun
from shardwright.api.checking.reference import EagerRun
from shardwright.api.compile import CompiledStep, PlanOptions, compile_step, import_training_step
from shardwright.dialects.aten import OpaqueOp
from shardwright.dialects.text import module_text
from shardwright.ir.mesh import Mesh
from shardwright.lowering.calls.allowed_ops import vouch_for
from shardwright.lowering.calls.arguments import attribute_of
from shardwright.lowering.importer.unknown_ops import UnknownOps
from shardwright.lowering.probe.apart import DiedError, run_apart
from shardwright.lowering.probe.cache import ProbeCache
from shardwright.lowering.probe.one_op import call_on, draw, find_domain, one_op_module, run, spec_of, the_op
from shardwright.lowering.probe.probe import believed, infer_rule, small_use
from shardwright.lowering.probe.probed_rule import ProbedFactor, ProbedRule
from shardwright.lowering.probe.shapes import small_sizes
from shardwright.passes.analysis.coverage import coverage

FLOAT, INDEX = torch.float32, torch.int64


def opaque(name: str, shapes: list[tuple[int, ...]], *, dtypes: tuple[torch.dtype, ...] = (), **given: int) -> OpaqueOp:
    """Return a use of a custom op on operands of these shapes."""
    specs = list(zip(shapes, dtypes or (FLOAT,) * len(shapes), strict=True))
    attributes: dict[str, Attribute] = {key: attribute_of(value) for key, value in given.items()}
    target = f"odd::{name}.default"
    vouch_for(target)
    call = call_on(target, specs, attributes)
    domain = find_domain(call, specs)
    assert domain is not None
    results = run(call, draw(specs, domain, 0))
    assert results is not None
    return the_op(one_op_module(target, specs, list(map(spec_of, results)), attributes))


def inferred(op: OpaqueOp) -> str | None:
    if (use := small_use(op)) is None:
        return None
    instance = op.instance()
    rule = infer_rule(use)
    return rule.notation(instance.operands, instance.results) if rule else None


@pytest.mark.parametrize(
    ("op", "rule"),
    [
        (
            opaque("product", [(64, 48), (48, 100)]),
            "([f0, f2], [f2, f1]) -> ([f0, f1]) reduction={f2} linear={0, 1}",
        ),
        (
            opaque("affine", [(64, 48), (48, 100), (100,)]),
            "([f1, f2], [f2, f0], [f0]) -> ([f1, f0]) reduction={f2} linear={0+2, 1+2} additive={2}",
        ),
        (
            opaque("grouped_scores", [(3, 8, 16, 32), (3, 4, 20, 32)]),
            "([f0, f1*g0, f2, w0], [f0, f1, w1, w2]) -> ([f0, f1*g2, f2, w3]) {f1=4, g0=2, g2=2}"
            " replicated={w0, w1, w2, w3}",
        ),
        (opaque("peak", [(6, 50)]), "([f1, f0]) -> ([f0], [f1, f0]) reduction={max f1}"),
        (opaque("flattened", [(6, 7, 5)]), "([f1, w0, f0]) -> ([f1*g0, f0]) {f1=6, g0=7} replicated={w0}"),
        (
            opaque("picked", [(40, 6), (9,)], dtypes=(FLOAT, INDEX)),
            "([w0, f0], [f1]) -> ([f1, f0]) replicated={w0} linear={0}",
        ),
        # A band of 100 covers all of a few rows, but not all of 120.
        (opaque("banded", [(120, 7)], width=100), "([w0, f0]) -> ([w1, f0]) replicated={w0, w1} linear={0}"),
        (opaque("whole", [(6, 5)]), "([w0, w1]) -> ([w2, w3]) replicated={w0, w1, w2, w3} linear={0}"),
    ],
    ids=lambda given: given.overload if isinstance(given, OpaqueOp) else "",
)
def test_a_rule_is_inferred(op: OpaqueOp, rule: str):
    assert inferred(op) == rule


def test_an_op_with_random_results_has_no_rule():
    assert inferred(opaque("noisy", [(6, 5)])) is None


def test_an_op_that_writes_to_its_operands_is_not_run():
    with pytest.raises(VerifyException, match=r"'odd\.overwritten\.default' writes to its arguments"):
        opaque("overwritten", [(6, 5)])


def test_factors_that_do_not_hold_are_dropped_and_the_others_kept():
    use = small_use(opaque("product", [(6, 5), (5, 7)]))
    assert use is not None
    right, wrong = ProbedFactor(((0, 0),), ((0, 0),)), ProbedFactor(((1, 1),), (), None)
    assert believed(use, ProbedRule((right, wrong), ((0, 1), (1,)))) == ProbedRule((right,), ((1,),))


def test_small_sizes_keep_equality_and_divisibility():
    small = small_sizes([1, 2, 8, 64, 512, 500, 784], [])
    assert small[1] == 1
    assert small[2] == 2
    assert len(set(small.values())) == len(small)
    assert all(small[512] % small[each] == 0 for each in (2, 8, 64))
    assert max(small.values()) < 64
    assert small_sizes([300], [100])[300] > 100


def test_a_model_with_inferred_rules_trains_as_on_one_device(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "shardwright"):
        module = import_training_step(doubled())
    assert module_text(module).count("spmd.inferred") == 5
    found = coverage(module)
    assert (found["replicated"], found["inferred"]) == ({}, {"odd::product.default": 5})
    assert caplog.text.count("inferred by probing") == 1
    assert "odd::product.default ([f0, f2], [f2, f1]) -> ([f0, f1])" in caplog.text
    result = check_interpreted(CheckCase(doubled, Mesh.of(x=3), "zero3", torch.float64, "sgd", steps=2))
    assert result.passed, str(result)


def test_inferred_rules_are_cached_and_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "deep" / "rules.json"
    op = opaque("product", [(6, 5), (5, 7)])
    first = ProbeCache(path)
    rule = first.rule(op)
    first.save()
    monkeypatch.setattr("shardwright.lowering.probe.cache.infer_rule", lambda _: ProbedRule(()))
    assert ProbeCache(path).rule(op) == rule
    (key,) = stored = json.loads(path.read_text())
    stored[key]["factors"][0][3] = [1]
    stored[key]["linear"] = [[0, 1]]
    path.write_text(json.dumps(stored))
    mended = ProbeCache(path).rule(op)
    assert mended is not None
    assert (0, 1) not in mended.linear
    path.write_text("{")
    assert not ProbeCache(path).rule(op)
    assert custom_ops.PRODUCT in key


def test_an_op_that_ends_its_process_runs_replicated(caplog: pytest.LogCaptureFixture):
    ops = UnknownOps(probe=True)
    with caplog.at_level(logging.WARNING, "shardwright"):
        attributes = ops.attributes_of(opaque("deadly", [(16, 5)]), torch.fx.Graph().placeholder("x"))
        ops.warn()
    assert attributes == {}
    assert "odd::deadly.default could not be probed for a sharding rule: it ended with exit code -9" in caplog.text
    assert "no sharding rule for odd::deadly.default" in caplog.text


def test_an_endless_probe_is_stopped():
    with pytest.raises(DiedError, match=r"no result after 0\.2 s"):
        run_apart(lambda: time.sleep(60), 0.2)
    assert run_apart(lambda: os.getpid(), 20) != os.getpid()


def split_axes(plan: CompiledStep, target: str) -> set[str]:
    """Return the axes over which a plan splits the uses of a custom op."""
    uses = [op for op in plan.module.walk() if isinstance(op, OpaqueOp) and op.overload == target]
    assert uses
    signatures = [op.signature for op in uses if op.signature is not None]
    return {axis for found in signatures for each in found.operands for axis in each.split_axes}


def test_a_rule_that_fails_at_its_use_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    cluster = split_cluster(Mesh.of(gpu=2))
    with caplog.at_level(logging.WARNING, "shardwright"):
        plan = compile_step(windowed(), cluster, PlanOptions(pins="tp"))
    (said,) = [each.getMessage() for each in caplog.records if "does not hold" in each.getMessage()]
    assert "odd::first_columns" in said
    assert "[0, 32]" in said
    assert split_axes(plan, "odd::first_columns.default") == set()
    assert split_axes(compile_step(doubled(), cluster, PlanOptions(pins="dp")), "odd::product.default") == {"gpu"}


def test_rules_are_checked_for_the_parts_of_a_batch() -> None:
    step = windowed()
    plan = compile_step(step, split_cluster(Mesh.of(gpu=2)), PlanOptions(stages=1, micro_batches=4))
    # Rows of a batch are independent, so the rule holds for every split of them.
    assert split_axes(plan, "odd::first_columns.default") >= {"micro"}
    reference = EagerRun(step, None, 0)
    found = InterpretedRun(plan.module, reference.model).step(step.batch)
    torch.testing.assert_close(found["loss", "loss"], reference.step(step.batch)["loss", "loss"])
