"""The blocks of Python on pages of the manual run in the order of the page, in one process."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import torch
from pages import ROOT, blocks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shardwright as sw

PAGES = ["checkpoints", "interfaces", "models", "optimizers", "random-numbers", "report", "tutorial"]

NOT_HERE = {
    "parameter.placements": "tests/distributed/test_sharded_state.py",
    "DistributedTrainer(": "tests/end_to_end/test_hf_trainer_example.py",
    "pl.LightningModule": "tests/end_to_end/test_lightning_example.py",
    "set_optimizer_state_dict": "tests/distributed/test_sharded_state.py",
    "rt.random_dropout": "tests/unit/runtime/test_counter_random.py",
}
"""Parts of blocks that need another process, device or package -> the test that runs the same."""


def names_of_the_page(folder: Path) -> dict[str, Any]:
    """Return the names that the pages assume: a model with its loss, optimizer and data, and packages."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(84, 784), torch.randint(10, (84,)))
    example, loss, linear = data[:64], nn.functional.cross_entropy, nn.Linear(768, 10)
    return {
        **{"torch": torch, "nn": nn, "sw": sw, "partial": partial, "logging": logging, "DataLoader": DataLoader},
        **{"SummaryWriter": MagicMock, "wandb": SimpleNamespace(init=MagicMock())},
        **{"model": nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)), "loss": loss},
        **{"loss_function": loss, "optimizer": partial(torch.optim.AdamW, lr=1e-3), "example": example},
        **{"dataset": data, "data": data, "held_out": data, "batch": example, "batches": [example] * 2},
        **{"inputs": example[0], "labels": example[1], "number": 0, "folder": folder / "dcp", "cluster": "local-4"},
        **{"x": torch.randn(64, 2, 768), "head": lambda y: linear(y.mean(1)), "cross_entropy": loss},
    }


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names = names_of_the_page(tmp_path)
    step = sw.parallelize(names["model"], names["loss"], names["optimizer"], names["example"])
    assert step.optimizer is not None
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(cast(Any, step.optimizer), 10)
    names |= {"step": step, "schedule": schedule, "loader": step.loader(names["data"])}
    ran = 0
    for language, block in blocks(f"docs/{page}.md"):
        text = "\n".join(block)
        if language == "python" and not any(part in text for part in NOT_HERE):
            # Blocks share the step; each has the names that the text before it assumes.
            exec(compile(text, f"docs/{page}.md", "exec"), names := {**names, **names_of_the_page(tmp_path)})
            ran += 1
    assert ran


def test_the_tests_of_the_other_blocks_exist():
    assert all((ROOT / path).exists() for path in NOT_HERE.values())
