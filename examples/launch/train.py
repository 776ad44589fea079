"""
The training script that the launchers of this folder start, and the step that `shardwright plan` plans.

    shardwright plan train:make_step --cluster cluster.toml --out plan    # once, on any machine, in this folder
    torchrun ... train.py --cluster cluster.toml --plan plan --save runs/a

It resumes from the newest checkpoint in `runs/a`, on any number of processes.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import TensorDataset

import shardwright as sw

ROWS = 64


def dataset() -> TensorDataset:
    """Return random inputs and labels, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(100 * ROWS, 32, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def network() -> nn.Module:
    """Return the model; each rank keeps only its part of the weights."""
    return nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 2))


def make_step() -> sw.TrainingStep:
    """Return the step of one device, with the batch of all devices."""
    return sw.TrainingStep(
        network, nn.functional.cross_entropy, partial(torch.optim.AdamW, lr=1e-3), dataset()[:ROWS], clip_norm=1.0
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--cluster", default="auto", help="cluster file; by default the processes are measured")
    made.add_argument("--plan", help="folder of `shardwright plan`; by default the job plans when it starts")
    made.add_argument("--save", help="folder of checkpoints, on storage that all hosts share")
    made.add_argument("--save-every", type=int, default=50)
    made.add_argument("--steps", type=int, default=100)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Train; the first process prints."""
    options = parser().parse_args(arguments)
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("shardwright").setLevel(logging.INFO)
    asked = make_step()
    step = sw.parallelize(
        asked.model,
        asked.loss,
        asked.optimizer,
        asked.batch,
        options.cluster,
        clip_norm=asked.clip_norm,
        # Without a plan, a restarted job on other devices starts from the plan of its checkpoint.
        replan_from=options.plan or options.save,
    )
    assert step.optimizer is not None
    schedule, loader = CosineAnnealingLR(step.optimizer, options.steps), step.loader(dataset())
    if options.save and (saved := step.resume(options.save)):
        schedule.load_state_dict(saved.extra)
    for batch in loader:
        if step.steps >= options.steps:
            break
        loss = step(batch).item()
        schedule.step()
        if step.rank == 0:
            print(f"step {step.steps}  loss {loss:.6f}", flush=True)
        if options.save and (step.steps % options.save_every == 0 or step.steps == options.steps):
            step.save(options.save, extra=schedule.state_dict())


if __name__ == "__main__":
    main()
