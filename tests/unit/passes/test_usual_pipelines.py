"""Modules after the usual pipelines print and read back equally, and can be stripped and searched again."""

from collections import Counter
from pathlib import Path

import pytest
from ir_files import context, parse
from launches import names_of
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

import shardwright
from shardwright.dialects.compute import ComputeOp
from shardwright.dialects.text import module_text
from shardwright.dialects.train import is_update
from shardwright.ir.cluster_file import parse_cluster, shipped_clusters
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.strip_resharding import strip_resharding
from shardwright.tools.ir_input import load_module

STEP = Path(shardwright.__file__).parent / "examples" / "road" / "step.mlir"
PIPELINES = {
    "flat": "search-strategy,program",
    "accumulated": "search-strategy,program{parts=2}",
    "duplex": "search-strategy,program{mode=duplex parts=2}",
    "stages": "partition-stages{stages=2},search-strategy,program{mode=pipeline parts=2 schedule=eager-1f1b}",
    "stages-duplex": "partition-stages{stages=2},search-strategy,program{mode=duplex parts=2}",
}


def begun(pipeline: str = "prepare") -> ModuleOp:
    """Return the step with a cluster, after the passes of `pipeline`."""
    module = load_module(str(STEP))
    add_cluster(module, parse_cluster(shipped_clusters()["local-4"]))
    run_pipeline(context(), module, pipeline)
    return module


def ops_of(module: ModuleOp) -> Counter[str]:
    """Count compute ops by name, except updates, which may be joined."""
    return Counter(op.name for op in module.walk() if isinstance(op, ComputeOp) and not is_update(op))


# The pipeline of stages that take turns has the passes of the other two.
@pytest.mark.parametrize("name", names_of(PIPELINES, lambda name: name not in ("flat", "duplex")))
def test_texts_are_equal_after_every_pass_and_a_plan_can_be_searched_again(name: str):
    def on_before(each: ModulePass, module: ModuleOp) -> None:
        ctx = context()
        custom, generic = module_text(module), module_text(module, generic=True)
        for text in (custom, generic):
            again = parse(text, ctx)
            assert module_text(again) == custom, each.name
            assert module_text(again, generic=True) == generic, each.name

    module = begun()
    run_pipeline(context(), module, f"{PIPELINES[name]},finish,canonicalize", on_before=on_before)

    searched = f"{PIPELINES[name].partition('search-strategy')[0]}search-strategy"
    strip_resharding(module)
    assert ops_of(module) == ops_of(begun(f"prepare,{searched}"))
    run_pipeline(context(), module, "search-strategy,program,finish", verify_each=True)
