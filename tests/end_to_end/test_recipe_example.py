"""The example `recipe`: several processes train as the same recipe on one device, step by step."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from example_runs import EXAMPLES, load_example, write_cluster
from forked import torchrun
from torch import nn
from torch.utils.data import DataLoader, Dataset

import shardwright as sw
from shardwright.runtime.batches import ShareSampler

RUN = Path(__file__).parents[1] / "support" / "recipe_run.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
MARGIN = 3.0
"""The allowed error in bfloat16 relative to the errors of other summation orders on one device."""


@dataclass(frozen=True)
class Curves:
    """Loss, accuracy and norm by step; and the held-out losses."""

    steps: list[tuple[float, float, float]]
    held: list[float]

    def losses(self) -> torch.Tensor:
        """Return the losses of all steps, followed by the held-out losses."""
        return torch.tensor([loss for loss, _, _ in self.steps] + self.held, dtype=torch.float64)


def on_one_device(recipe: ModuleType, precision: str | None = None, parts: int = 1) -> Curves:
    """Run the recipe in plain PyTorch, accumulating over parts of the batch."""
    torch.manual_seed(0)
    model = recipe.GPT2LMHeadModel(recipe.CONFIG)
    training = recipe.Windows("argparse.py", recipe.STEPS * recipe.BATCH)
    held_out = recipe.Windows("ast.py", recipe.HELD)
    optimizer = recipe.make_optimizer(model.named_parameters())
    schedule = recipe.make_schedule(optimizer)
    narrow = torch.autocast("cpu", torch.bfloat16, enabled=precision is not None)
    found = Curves([], [])
    for number, rows in enumerate(ShareSampler(len(training), recipe.BATCH, range(recipe.BATCH))):
        batch = {name: torch.stack([training[row][name] for row in rows]) for name in ("input_ids", "labels")}
        optimizer.zero_grad()
        loss, accuracy = 0.0, 0.0
        for part in zip(*(item.chunk(parts) for item in batch.values()), strict=True):
            named = dict(zip(batch, part, strict=True))
            with sw.counter_random(0, number), narrow:
                output = model(**named)
            (output.loss / parts).backward()
            loss += output.loss.item() / parts
            accuracy += recipe.metrics(output, named)["accuracy"].item() / parts
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        found.steps.append((loss, accuracy, norm.item()))
        if number % recipe.EVERY == recipe.EVERY - 1:
            with narrow:
                found.held.append(evaluated(model, held_out, recipe.BATCH))
    return found


@torch.no_grad()
def evaluated(model: nn.Module, data: Dataset[dict[str, torch.Tensor]], rows: int) -> float:
    """Return the mean loss per row, in eval mode."""
    model.eval()
    batches = list(DataLoader(data, batch_size=rows))
    losses = [model(**batch).loss.item() * len(batch["labels"]) for batch in batches]
    model.train()
    return sum(losses) / sum(len(batch["labels"]) for batch in batches)


def on_processes(script: Path, ranks: int, *options: str) -> Curves:
    """Run the example on processes and return the printed curves."""
    pytest.importorskip("transformers")
    ran = torchrun(ranks, str(script), *options, timeout=280)
    assert ran.returncode == 0, ran.stderr
    return curves(ran.stdout)


def curves(printed: str) -> Curves:
    """Parse the output of the example."""
    steps = re.findall(r"loss (\S+)  accuracy (\S+)  grad_norm (\S+)$", printed, re.MULTILINE)
    held = re.findall(r"held out  loss (\S+)$", printed, re.MULTILINE)
    return Curves([(float(a), float(b), float(c)) for a, b, c in steps], [float(loss) for loss in held])


@pytest.mark.distributed
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        pytest.param(4, ("--cluster", "local-4", "--mesh", "2x2"), marks=pytest.mark.thorough),
        pytest.param(4, ("--cluster", "local-4"), marks=pytest.mark.thorough),
        pytest.param(2, (), marks=pytest.mark.thorough),
    ],
)
def test_the_recipe_follows_one_device(ranks: int, options: tuple[str, ...]):
    found, one = on_processes(EXAMPLES / "recipe.py", ranks, *options), on_one_device(load_example("recipe"))
    assert len(found.steps) == len(one.steps)
    assert_same_steps(found, one)
    assert found.held == pytest.approx(one.held, rel=1e-5)


def assert_same_steps(found: Curves, one: Curves) -> None:
    """Compare the steps of the example; one device may have made more steps."""
    for (loss, accuracy, norm), (loss_1, accuracy_1, norm_1) in zip(found.steps, one.steps, strict=False):
        assert loss == pytest.approx(loss_1, rel=1e-5, abs=1e-6)
        assert accuracy == pytest.approx(accuracy_1, abs=1e-4 + 1 / (16 * 31))
        assert norm == pytest.approx(norm_1, rel=1e-3)


@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_a_killed_recipe_resumes_on_fewer_processes(tmp_path: Path):
    recipe, runs = load_example("recipe"), str(tmp_path / "runs")
    one, last = on_one_device(recipe), 9
    given = ("--cluster", "local-4", "--mesh", "2x2", "--save", runs)
    launch = [*TORCHRUN, "4", str(EXAMPLES / "recipe.py"), *given]
    with subprocess.Popen(launch, stdout=subprocess.PIPE, text=True, start_new_session=True) as killed:
        assert killed.stdout is not None
        printed: list[str] = []
        for line in killed.stdout:
            printed.append(line)
            if line.startswith(f"step {last:3}"):
                os.killpg(killed.pid, signal.SIGKILL)
    before = curves("".join(printed))
    assert_same_steps(before, one)

    after = on_processes(EXAMPLES / "recipe.py", 2, "--cluster", write_cluster(2, tmp_path), "--save", runs)
    made = len(one.steps) - len(after.steps)
    assert made == last + 1 - (last + 1) % recipe.SAVE, "the last checkpoint that was whole"
    assert_same_steps(after, Curves(one.steps[made:], []))
    assert (before.held + after.held)[-len(one.held) :] == pytest.approx(one.held, rel=1e-5)


@pytest.mark.distributed
@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_error_in_bfloat16_is_like_that_of_other_summation_orders(ranks: int):
    """Dropout is off, as its numbers would depend on the parts of the batch on one device."""
    given = ("--cluster", "local-4") if ranks == 4 else ()
    found = on_processes(RUN, ranks, "--precision", "bf16-mixed", *given)
    recipe = load_example("recipe")
    recipe.CONFIG.update({"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0})
    one, *others = (on_one_device(recipe, "bf16-mixed", parts).losses() for parts in (1, 2, 4, 8))
    furthest = max((other - one).abs().max().item() for other in others)
    assert 0 < (found.losses() - one).abs().max().item() <= MARGIN * furthest
