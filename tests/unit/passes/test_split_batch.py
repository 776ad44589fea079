"""Programs with a batch split over time have, in the interpreter, the results of one device on the whole batch."""

import pytest
import torch
from launches import covering
from split_cluster import split_cluster

from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.check import check_interpreted
from shardwright.ir.mesh import parse_mesh

PIPELINE = "prepare,search-strategy,split-batch{{parts={parts}}},communicate,finish"


@pytest.mark.parametrize(
    ("model", "mesh", "parts"), covering(["gpt2-tiny", "bert-tiny", "vit-tiny"], ["2", "2x1"], [2, 4], every=3)
)
def test_the_parts_sum_to_the_whole(model: str, mesh: str, parts: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shardwright.api.compile.emit_python", lambda *args, **named: "")
    parsed = parse_mesh(mesh)
    pipeline = PIPELINE.format(parts=parts)
    case = CheckCase(model, parsed, dtype=torch.float64, steps=2, cluster=split_cluster(parsed), pipeline=pipeline)
    result = check_interpreted(case)
    assert result.passed, str(result)
