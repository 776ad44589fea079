"""The example of a recipe: on four processes it follows the same recipe on one device, step by step."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest
import torch
from example_runs import EXAMPLES
from torch import nn
from torch.utils.data import DataLoader, Dataset

import shardwright as sw
from shardwright.runtime.sampler import ShareSampler


def on_one_device() -> tuple[list[tuple[float, float, float]], list[float]]:
    """The recipe in plain PyTorch: by step loss, accuracy and norm; and the losses on what was held out."""
    spec = importlib.util.spec_from_file_location("recipe", EXAMPLES / "recipe.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    torch.manual_seed(0)
    model = recipe.GPT2LMHeadModel(recipe.CONFIG)
    training = recipe.Windows("argparse.py", recipe.STEPS * recipe.BATCH)
    held_out = recipe.Windows("ast.py", recipe.HELD)
    optimizer = recipe.make_optimizer(model.named_parameters())
    schedule = recipe.make_schedule(optimizer)
    steps: list[tuple[float, float, float]] = []
    held: list[float] = []
    for number, rows in enumerate(ShareSampler(len(training), recipe.BATCH, range(recipe.BATCH))):
        batch = {name: torch.stack([training[row][name] for row in rows]) for name in ("input_ids", "labels")}
        optimizer.zero_grad()
        with sw.counter_random(0, number):
            output = model(**batch)
        output.loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        steps.append((output.loss.item(), recipe.metrics(output, batch)["accuracy"].item(), norm.item()))
        if number % recipe.EVERY == recipe.EVERY - 1:
            held.append(evaluated(model, held_out, recipe.BATCH))
    return steps, held


@torch.no_grad()
def evaluated(model: nn.Module, data: Dataset[dict[str, torch.Tensor]], rows: int) -> float:
    """The mean loss by rows, in eval mode."""
    model.eval()
    batches = list(DataLoader(data, batch_size=rows))
    losses = [model(**batch).loss.item() * len(batch["labels"]) for batch in batches]
    model.train()
    return sum(losses) / sum(len(batch["labels"]) for batch in batches)


@pytest.mark.distributed
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ranks", "cluster"), [(4, "local-4"), pytest.param(2, "auto", marks=pytest.mark.thorough)])
def test_the_recipe_follows_one_device(ranks: int, cluster: str):
    pytest.importorskip("transformers")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*launch, str(EXAMPLES / "recipe.py"), "--cluster", cluster]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    steps, held = on_one_device()
    pattern = r"loss (\S+)  accuracy (\S+)  grad_norm (\S+)$"
    printed = [tuple(map(float, found)) for found in re.findall(pattern, ran.stdout, re.MULTILINE)]
    assert len(printed) == len(steps)
    for (loss, accuracy, norm), (loss_1, accuracy_1, norm_1) in zip(printed, steps, strict=True):
        assert loss == pytest.approx(loss_1, rel=1e-5, abs=1e-6)
        assert accuracy == pytest.approx(accuracy_1, abs=1e-4 + 1 / (16 * 31))
        assert norm == pytest.approx(norm_1, rel=1e-3)
    told = [float(loss) for loss in re.findall(r"held out  loss (\S+)$", ran.stdout, re.MULTILINE)]
    assert told == pytest.approx(held, rel=1e-5)
