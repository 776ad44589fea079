"""
Monitoring of a training job in a plain loop: a log, curves, a profile by layer.

    torchrun --nproc-per-node 2 examples/watching.py [--cluster FILE] [--out FOLDER]

Writes `metrics.csv`, events for TensorBoard if it is installed, and `trace.json`, which https://ui.perfetto.dev opens.
Any other function that takes a dict of numbers by step, such as `wandb.log`, is one line in `writers`.
"""

from __future__ import annotations

import argparse
import csv
import logging
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import TensorDataset

import shardwright as sw

BATCH, STEPS = 32, 10
ADAMW = partial(torch.optim.AdamW, lr=1e-2)
Writer = Callable[[int, Mapping[str, float]], object]


def dataset() -> TensorDataset:
    """Return random inputs and labels, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(STEPS * BATCH, 16, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def network() -> nn.Module:
    """Return layers with names, which the profile shows."""
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(rise=nn.Linear(16, 64), act=nn.GELU(), fall=nn.Linear(64, 2)))


def metrics(output: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the fraction of correct predictions."""
    return {"accuracy": (output.argmax(-1) == labels).float().mean()}


def writers(folder: Path, job: ExitStack) -> list[Writer]:
    """Return writers for the numbers of every step: a file, and TensorBoard if it is installed."""
    file = job.enter_context((folder / "metrics.csv").open("w", newline=""))
    table = csv.writer(file)
    table.writerow(["step", "loss", "accuracy", "lr"])
    found: list[Writer] = [lambda step, numbers: table.writerow([step, *numbers.values()])]
    if find_spec("tensorboard") is not None:
        from torch.utils.tensorboard import SummaryWriter

        board = job.enter_context(SummaryWriter(folder))
        found.append(lambda step, numbers: [board.add_scalar(name, value, step) for name, value in numbers.items()])
    # With Weights & Biases: found.append(lambda step, numbers: wandb.log(dict(numbers), step=step))
    return found


def main() -> None:
    """Train; the first process writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir(), "shardwright-watching"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(format="%(name)s %(levelname)s: %(message)s")
    logging.getLogger("shardwright").setLevel(logging.INFO)

    data = dataset()
    step = sw.parallelize(network(), nn.functional.cross_entropy, ADAMW, data[:BATCH], options.cluster, metrics=metrics)
    assert step.optimizer is not None
    rates = torch.optim.lr_scheduler.ExponentialLR(step.optimizer, 0.9)
    with ExitStack() as job:
        details = writers(options.out, job) if step.rank == 0 else []
        # Profile two steps; the first profiled step also loads the program with ranges.
        watched = schedule(wait=3, warmup=1, active=2, repeat=1)
        profiler = job.enter_context(profile(activities=[ProfilerActivity.CPU], schedule=watched))
        for number, batch in enumerate(step.loader(data, seed=None)):
            numbers = {"loss": step(batch), **step.metrics, "lr": torch.tensor(step.optimizer.rates[0])}
            for write in details:
                write(number, {name: value.item() for name, value in numbers.items()})
            rates.step()
            profiler.step()
    if step.rank == 0:
        profiler.export_chrome_trace(str(options.out / "trace.json"))


if __name__ == "__main__":
    main()
