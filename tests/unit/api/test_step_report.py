"""The page and the table in HTML that a step gives of its plan."""

from functools import partial
from pathlib import Path

import torch
from split_cluster import split_cluster
from torch import nn

import shardwright as sw
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import seconds_text


def test_a_step_writes_a_page_about_its_plan(tmp_path: Path):
    batch = torch.ones(4, 3), torch.zeros(4, 2)
    sgd = partial(torch.optim.SGD, lr=0.1)
    step = sw.parallelize(nn.Linear(3, 2), nn.functional.mse_loss, sgd, batch, split_cluster(Mesh.of(gpu=1)))
    with step.profile() as profile:
        step(batch)
    page = step.report(tmp_path / "page.html", profile)
    assert (tmp_path / "page.html").read_text() == page
    for part in ("weight", "bias", seconds_text(step.plan["predicted_step_s"]), "The measured step takes"):
        assert part in page
    assert "No rank sends anything." in page
    table = step._repr_html_()
    assert table.count("<tr>") >= 5
    assert seconds_text(step.plan["predicted_step_s"]) in table
    assert "<script" not in table
