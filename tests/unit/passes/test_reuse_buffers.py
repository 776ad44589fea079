"""The memory count before and after `reuse-buffers`, and the emitted program, follow its decisions."""

import re
from collections.abc import Hashable, Sequence
from pathlib import Path

import pytest
from emitted import emit
from ir_files import context, parse
from split_cluster import split_cluster
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i64

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.dialects.reuse import REUSES, reused_by_result
from shardwright.ir.mesh import parse_mesh
from shardwright.lowering.codegen.errors import EmitError
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.passes.analysis.memory import memory_use
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import stage_meshes, step_functions

GOLDEN = Path(__file__).parents[1] / "lowering" / "golden"
CONFIG = GPT2Config(layers=2, width=32, heads=4, vocabulary=52, positions=16)
PIPELINES = {
    "micro-batches": "prepare,search-strategy{algorithm=eliminate},program{parts=2}",
    "two stages": "prepare,partition-stages{stages=2},search-strategy,program{mode=pipeline parts=2 schedule=1f1b}",
}


def golden(name: str) -> ModuleOp:
    """Return the module of a golden program."""
    return parse((GOLDEN / f"{name}.mlir").read_text(), context())


def lowered(pipeline: str) -> ModuleOp:
    """Return a step of GPT-2 without decisions of `reuse-buffers`."""
    step = gpt2_step(CONFIG, batch=4, length=8)
    module = compile_step(step, split_cluster(parse_mesh("dp=2")), PlanOptions(pipeline=PIPELINES[pipeline])).module
    for op in module.walk():
        op.attributes.pop(REUSES, None)
    return module


def held(module: ModuleOp) -> Sequence[tuple[Hashable, int, int]]:
    """Return the buffers of each stage: value, first event and last event."""
    (func,) = step_functions(module)
    uses = [memory_use(func, mesh, stage) for stage, mesh in stage_meshes(module, func)]
    return [(each.value, each.first, each.last) for use in uses for each in use.buffers]


@pytest.mark.parametrize("name", [*sorted(each.stem for each in GOLDEN.glob("*.mlir")), *PIPELINES])
def test_the_memory_count_is_equal_before_and_after(name: str):
    module = lowered(name) if name in PIPELINES else golden(name)
    assert not any(REUSES in op.attributes for op in module.walk())
    before = held(module)
    run_pipeline(context(), module, "reuse-buffers")
    assert any(REUSES in op.attributes for op in module.walk()) or name == "empty"
    assert held(module) == before


def with_memory_of_its_own(module: ModuleOp, name: str) -> ModuleOp:
    """Change a module so that the results of one op get new buffers."""
    (op,) = (op for op in module.walk() if any(result.name_hint == name for result in op.results))
    reused = reused_by_result(op)
    assert reused is not None
    assert set(reused) != {-1}
    op.attributes[REUSES] = DenseArrayBase.from_list(i64, [-1] * len(reused))
    module.verify()
    return module


def decided(module: ModuleOp) -> ModuleOp:
    """Run `reuse-buffers` and return the module."""
    run_pipeline(context(), module, "reuse-buffers")
    return module


SUM = """
#one = #spmd.sig<@mesh, ([{}]) -> ([{}])>
#two = #spmd.sig<@mesh, ([{}], [{}]) -> ([{}])>
spmd.mesh @mesh = <["gpu"=2]>
func.func @step(%x: tensor<8xf32> {train.batch = "x", spmd.sharding = #spmd.sharding<@mesh, [{}]>})
    -> (tensor<8xf32> {train.output = 0 : i64}) {
  %a = aten.relu %x {spmd.signature = #one} : (tensor<8xf32>) -> tensor<8xf32>
  %b = aten.add.Tensor %a, %x {spmd.signature = #two} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %b : tensor<8xf32>
}
"""


def test_memory_and_program_follow_the_decision_on_a_sum():
    taken, own = (decided(parse(SUM, context())) for _ in range(2))
    with_memory_of_its_own(own, "b")
    assert len(held(own)) == len(held(taken)) + 1
    assert "aten.add_.Tensor(a, x)" in emit(taken)
    assert "aten.add.Tensor(a, x)" in emit(own)


def test_memory_and_program_follow_the_decision_on_a_fragment():
    taken, own = (decided(golden("stages")) for _ in range(2))
    with_memory_of_its_own(own, "g.v")
    assert len(held(own)) == len(held(taken)) + 1
    added = [re.search(r"sums\.add\(gv(\.clone\(\))?\)", emit(each)) for each in (taken, own)]
    assert [each and each.group(1) for each in added] == [None, ".clone()"]


def test_an_update_without_a_decision_is_not_emitted():
    module = decided(golden("updates"))
    update = next(op for op in module.walk() if op.name == "train.adamw")
    del update.attributes[REUSES]
    with pytest.raises(EmitError, match=r"lacks the operands that it overwrites \(spmd.reuses\); run reuse-buffers"):
        emit(module)
