"""Checkpoints on one device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from features import batches, planned, two_layers

import shardwright as sw

OPTIONS = {"precision": "fp16-mixed", "loss_scaling": sw.LossScaling(1024.0, growth_interval=2)}


def test_the_loss_scale_is_restored(tmp_path: Path):
    first, second = (planned(two_layers(), **OPTIONS) for _ in range(2))
    for batch in batches(count=3):
        first(batch)
    first.save(tmp_path)
    second.load(tmp_path)
    assert first.loss_scale == second.loss_scale == 2048.0
    (batch,) = batches(count=1)
    assert torch.equal(first(batch), second(batch))
    assert first.loss_scale == second.loss_scale == 4096.0


@pytest.mark.parametrize("extra", [lambda: 0, {"optimizer": torch.optim.SGD}], ids=["function", "class"])
def test_extra_data_that_a_file_cannot_hold_is_refused(tmp_path: Path, extra: object):
    with pytest.raises(sw.CheckpointError, match="something other than numbers, strings, tensors, lists and dicts"):
        planned(two_layers()).save(tmp_path / "runs", extra=extra)
    assert not list(tmp_path.iterdir())
