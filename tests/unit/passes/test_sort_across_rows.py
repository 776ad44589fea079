"""A mixture of experts that drops no token has the same results for any number of lists of sorted tokens."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from launches import names_of
from split_cluster import split_cluster
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from shardwright.api.checking.cases import CheckCase, imported, plan_case
from shardwright.api.checking.check import check_interpreted
from shardwright.dialects.aten import AtenOp
from shardwright.dialects.compute import shape_of
from shardwright.ir.mesh import Mesh
from shardwright.models.llama import LlamaConfig, llama_step
from shardwright.models.moe import mixtral
from shardwright.passes.add_cluster import add_cluster
from shardwright.passes.pipeline import run_pipeline

ROWS = 8
"""The rows in the model's batch."""

CONFIG = LlamaConfig(layers=1, width=32, heads=4, key_heads=2, hidden=48, vocabulary=101, experts=mixtral(4))
STEP = partial(llama_step, CONFIG, batch=ROWS, length=16)

LISTS: dict[str, tuple[dict[str, int], dict[str, Any], int]] = {
    "one device": ({"gpu": 1}, {}, 1),
    "one device, dp": ({"gpu": 1}, {"pins": "dp"}, 1),
    "dp": ({"gpu": 2}, {"pins": "dp"}, 2),
    "tp": ({"gpu": 2}, {"pins": "tp"}, 1),
    "zero3, recomputed": ({"gpu": 4}, {"pins": "zero3", "keep_activations": 0.3}, 4),
    "three devices": ({"gpu": 3}, {"pins": "dp"}, ROWS),
    "uneven": ({"gpu": 2}, {"algorithm": "eliminate", "ratios": "0.75,0.25"}, ROWS),
}


def lists_of(module: ModuleOp) -> set[int]:
    """Return the numbers of lists in the grouped products of a step."""
    return {shape_of(op.args[0])[0] for op in module.walk() if isinstance(op, AtenOp) and "grouped" in op.name}


# One list for each device, and as many as rows; the other cases have numbers between these.
@pytest.mark.parametrize("name", names_of(LISTS, lambda name: name in ("zero3, recomputed", "uneven")))
def test_a_device_has_one_list_if_rows_are_split_evenly(name: str):
    axes, given, lists = LISTS[name]
    mesh = Mesh.of(**axes)
    case = replace(CheckCase(STEP, mesh, None, torch.float64, "sgd", 2, split_cluster(mesh)), **given)
    module = imported(case).clone()
    plan_case(case, module)
    assert lists_of(module) == {lists}
    result = check_interpreted(case)
    assert result.passed, str(result)


@pytest.mark.parametrize("parts", ["", "split-batch{parts=2},"])
def test_a_second_search_has_the_choices_of_the_first(parts: str):
    mesh = Mesh.of(gpu=2)
    case = CheckCase(STEP, mesh, None, torch.float64, "sgd", 2, split_cluster(mesh))
    module = imported(case).clone()
    add_cluster(module, split_cluster(mesh))
    run_pipeline(Context(), module, f"prepare,search-strategy{{algorithm=fixed pins=dp}},{parts}sort-across-rows")
    assert lists_of(module) == {4 if parts else 2}
    run_pipeline(Context(), module, "communicate,overlap,strip-resharding")
    assert lists_of(module) == {ROWS}
