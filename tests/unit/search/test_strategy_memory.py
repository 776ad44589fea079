"""The peak that a search predicts equals the peak of `check-memory` after resharding is lowered."""

from functools import cache

import pytest
from ir_files import context
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp

from shardwright.api.compile import import_training_step
from shardwright.dialects.step import MEMORY_SAVING, SEARCH
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import parse_mesh
from shardwright.ir.submesh import on_mesh
from shardwright.models import training_step
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.analysis.memory import peak_memory
from shardwright.passes.pipeline import run_pipeline
from shardwright.passes.step.step_view import step_views


@cache
def imported(name: str) -> ModuleOp:
    """Return a shipped step before its search, without a cluster."""
    module = import_training_step(training_step(name))
    run_pipeline(context(), module, "prepare")
    return module


def believed_and_found(name: str, mesh: str, search: str) -> tuple[int, int, bool]:
    """Return the peak predicted by a search, the peak of its program, and whether memory was short."""
    module = imported(name).clone()
    add_cluster(module, on_mesh(find_cluster("h100-8x8"), parse_mesh(mesh)))
    run_pipeline(context(), module, f"{search},communicate")
    ((view, cluster),) = step_views(module)
    summary = view.func.attributes[SEARCH]
    assert isinstance(summary, DictionaryAttr)
    peak = summary.data["peak_bytes"]
    assert isinstance(peak, IntegerAttr)
    found = peak_memory(view.func, cluster.mesh, blocks=cluster.blocks).bytes
    return peak.value.data, found, MEMORY_SAVING in view.func.attributes


@pytest.mark.parametrize("preset", ["dp", "tp", "zero3"])
@pytest.mark.parametrize("name", ["gpt2-tiny", "resnet50-tiny"])
def test_the_predicted_peak_of_a_preset_is_exact(name: str, preset: str):
    believed, found, _ = believed_and_found(name, "x=3", f"search-strategy{{algorithm=fixed pins={preset}}}")
    assert believed == found


@pytest.mark.parametrize("share", [0.8, 0.6])
def test_the_predicted_peak_under_a_memory_limit_is_exact(share: float):
    free, _, short = believed_and_found("mlp-tiny", "x=2,y=2", "search-strategy")
    assert not short
    budget = int(share * free)
    believed, found, short = believed_and_found("mlp-tiny", "x=2,y=2", f"search-strategy{{memory={budget}}}")
    assert short
    assert believed == found <= budget
