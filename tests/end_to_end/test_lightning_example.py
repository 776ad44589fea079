"""The example of a LightningModule: two processes log the same as a loop of plain PyTorch on one device."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from example_runs import launch_example, load_example, write_cluster
from torch import nn

from shardwright.runtime.batches import ShareSampler

# Found but not imported: lightning is large, and a worker may run none of these tests.
pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning")


def on_one_device(example: Any) -> tuple[list[tuple[float, float]], list[float], dict[str, torch.Tensor]]:
    """Return loss and accuracy by step, the held-out loss by epoch, and the trained weights."""
    model, data, held_out = example.network(), example.dataset(128, seed=1), example.dataset(64, seed=2)
    optimizer = example.ADAMW(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=24)
    steps: list[tuple[float, float]] = []
    held: list[float] = []
    sampler = ShareSampler(len(data), example.BATCH, range(example.BATCH))
    for epoch in range(example.EPOCHS):
        sampler.set_epoch(epoch)
        for rows in sampler:
            inputs, labels = data[rows]
            optimizer.zero_grad()
            output = model(inputs)
            loss = nn.functional.cross_entropy(output, labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            steps.append((loss.item(), example.metrics(output, labels)["accuracy"].item()))
        with torch.no_grad():
            held.append(nn.functional.cross_entropy(model(held_out.tensors[0]), held_out.tensors[1]).item())
    return steps, held, model.state_dict()


@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_lightning_logs_the_same_as_one_device(tmp_path: Path):
    launch_example("lightning_module", "--cluster", write_cluster(2, tmp_path), "--out", str(tmp_path), ranks=2)
    (file,) = tmp_path.glob("lightning_logs/*/metrics.csv")
    rows = list(csv.DictReader(file.open()))
    steps, held, state = on_one_device(load_example("lightning_module"))
    logged = [(float(row["loss"]), float(row["accuracy"])) for row in rows if row["loss"]]
    assert logged == [pytest.approx(each, rel=1e-5, abs=1e-6) for each in steps]
    assert [float(row["held_out"]) for row in rows if row["held_out"]] == pytest.approx(held, rel=1e-5)
    saved = torch.load(tmp_path / "model.pt")
    for name, value in state.items():
        torch.testing.assert_close(saved[name], value, rtol=1e-4, atol=1e-5)
