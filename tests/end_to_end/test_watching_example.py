"""The example `watching`: the loss curve of one device, a profile with layers, and a log with the plan."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from example_runs import EXAMPLES, load_example, write_cluster
from forked import torchrun
from torch import nn
from update_ranges import without_update


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_the_example_writes_log_curve_and_profile(tmp_path: Path):
    cluster, out = write_cluster(2, tmp_path), tmp_path / "out"
    ran = torchrun(2, str(EXAMPLES / "watching.py"), "--cluster", cluster, "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("shardwright INFO: Sequential: planned in ") == 1
    assert not ran.stdout

    example = load_example("watching")
    model, data = example.network(), example.dataset()
    optimizer = example.ADAMW(model.parameters())
    rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    rows = list(csv.DictReader((out / "metrics.csv").open()))
    assert len(rows) == example.STEPS
    for number, row in enumerate(rows):
        inputs, labels = data[number * example.BATCH : (number + 1) * example.BATCH]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        assert float(row["loss"]) == pytest.approx(loss.item(), rel=1e-5)
        assert float(row["lr"]) == pytest.approx(rates.get_last_lr()[0], rel=1e-6)
        rates.step()

    names = {event.get("name") for event in json.loads((out / "trace.json").read_text())["traceEvents"]}
    assert {f"{phase} {layer}" for phase in ("forward", "backward") for layer in ("rise", "fall")} <= names
    assert not without_update(("rise", "fall"), names)
