"""
A typical training recipe: GPT-2 of Hugging Face, AdamW with weight decay of matrices only, a warm-up and a cosine,
clipped gradients, accumulation, recomputed activations, dropout, metrics, regular evaluation, and optional bfloat16.
With `--save RUN` it writes checkpoints. When it is started again, on any number of processes, it resumes from the
newest one.

    torchrun --nproc-per-node 4 examples/recipe.py [--cluster FILE] [--mesh 2x2] [--precision bf16-mixed] [--save RUN]

Except for `parallelize`, its `loader` and `step.evaluate` this is the script for one device.
"""

from __future__ import annotations

import argparse
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, default_collate
from transformers import GPT2Config, GPT2LMHeadModel

import shardwright as sw

CONFIG = GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=4)
BATCH, LENGTH, STEPS, WARM, EVERY, SAVE, HELD = 16, 32, 20, 5, 10, 4, 60


class Windows(Dataset[dict[str, torch.Tensor]]):
    """Windows of the bytes of a Python module: tokens, and the same tokens as labels, because the model shifts them."""

    def __init__(self, module: str, count: int) -> None:
        source = (Path(sysconfig.get_paths()["stdlib"]) / module).read_bytes()
        self.windows = torch.frombuffer(bytearray(source), dtype=torch.uint8).long().unfold(0, LENGTH, 16)[:count]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.windows[index], "labels": self.windows[index]}


def make_optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Return AdamW with weight decay of matrices only."""
    named = list(named_parameters)
    decayed = [parameter for _, parameter in named if parameter.dim() >= 2]
    others = [parameter for _, parameter in named if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))


def make_schedule(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    """Return a linear warm-up followed by a cosine."""
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=WARM)
    return lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.CosineAnnealingLR(optimizer, STEPS)], [WARM])


def metrics(output: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the fraction of correctly predicted tokens."""
    return {"accuracy": (output.logits[:, :-1].argmax(-1) == batch["labels"][:, 1:]).float().mean()}


def evaluate(step: Any, data: Windows) -> float:
    """Return the mean loss on held-out data; the last batch has fewer rows."""
    batches = DataLoader(data, batch_size=BATCH)
    return sum(step.evaluate(batch).loss.item() * len(batch["labels"]) for batch in batches) / len(data)


def main() -> None:
    """Train, and print on the first process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--mesh")
    parser.add_argument("--precision")
    parser.add_argument("--save")
    options = parser.parse_args()

    torch.manual_seed(0)
    model, training, held_out = GPT2LMHeadModel(CONFIG), Windows("argparse.py", STEPS * BATCH), Windows("ast.py", HELD)
    example = default_collate([training[index] for index in range(BATCH)])
    step = sw.parallelize(
        model,
        None,
        make_optimizer,
        example,
        options.cluster,
        plan=sw.PlanOptions(stages=1, micro_batches=4, keep_activations=0.5, mesh=options.mesh),
        clip_norm=1.0,
        metrics=metrics,
        precision=options.precision,
        replan_from=options.save,
    )
    assert step.optimizer is not None
    schedule = make_schedule(step.optimizer)
    if options.save and (saved := step.resume(options.save)):
        schedule.load_state_dict(saved.extra)
    for number, batch in enumerate(step.loader(training), step.steps):
        loss = step(batch).item()
        schedule.step()
        details = "  ".join(f"{name} {value:.4f}" for name, value in step.metrics.items())
        if step.rank == 0:
            print(f"step {number:3}  loss {loss:.6f}  {details}", flush=True)
        if options.save and number % SAVE == SAVE - 1:
            step.save(options.save, extra=schedule.state_dict())
        if number % EVERY == EVERY - 1:
            held = evaluate(step, held_out)
            if step.rank == 0:
                print(f"held out  loss {held:.6f}", flush=True)


if __name__ == "__main__":
    main()
