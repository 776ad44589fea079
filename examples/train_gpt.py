"""
Train a byte-level GPT on text, on as many processes as torchrun starts.

    torchrun --nproc-per-node 4 examples/train_gpt.py --text FILE --cluster examples/clusters/local-4.toml

Except for the call of `parallelize`, which names the cluster, this is a script for one device. `--plain` trains without
it: plain PyTorch in one process.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sysconfig
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

import shardwright as sw
from shardwright.api.distributed_step import DistributedStep
from shardwright.models.gpt2 import GPT2, GPT2Config
from shardwright.models.transformer import token_cross_entropy

CONFIG = GPT2Config(layers=4, width=256, heads=4, vocabulary=256, positions=128)
BATCH, LENGTH = 16, 128
PROFILED = 5
"""The number of last steps whose computation and communication are measured."""


def read_text(path: str | None) -> torch.Tensor:
    """Return the bytes of a file, or by default of the interpreter's own Python sources."""
    if path is not None:
        data = Path(path).read_bytes()
    else:
        sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        data = b"\n".join(source.read_bytes() for source in sources)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def batch_at(text: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the global batch of one step, the same on every process."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - LENGTH - 1, (BATCH,), generator=generator)
    rows = torch.stack([text[start : start + LENGTH + 1] for start in starts])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def plain_step() -> Callable[[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """Return the same training step in plain PyTorch, from the same weights."""
    torch.manual_seed(0)
    model = GPT2(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, labels = batch
        optimizer.zero_grad()
        loss = token_cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", metavar="FILE", help="train on this file instead of Python's own sources")
    parser.add_argument("--cluster", default="auto", help="a cluster file, or auto (default) to measure the processes")
    parser.add_argument("--measure", type=int, metavar="N", help="time the N best plans, and take the fastest")
    parser.add_argument("--plain", action="store_true", help="plain PyTorch in one process")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, metavar="N", help="print the loss of every Nth step")
    parser.add_argument("--verbose", action="store_true", help="print the log of the compiler")
    parser.add_argument("--save", metavar="FILE", help="write the losses and the measured seconds")
    return parser.parse_args()


def main() -> None:
    """Train; the first process prints the loss and writes the measurements."""
    options = parsed()
    if options.verbose:
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("shardwright").setLevel(logging.DEBUG)
    text = read_text(options.text)
    planned: DistributedStep | None = None
    if not options.plain:
        planned = sw.parallelize(
            partial(GPT2, CONFIG),
            token_cross_entropy,
            partial(torch.optim.AdamW, lr=1e-3),
            batch_at(text, 0),
            options.cluster,
            measure=options.measure,
        )
    step = planned or plain_step()
    is_first = int(os.environ.get("RANK", "0")) == 0
    losses: list[float] = []
    seconds: list[float] = []
    with ExitStack() as stack:
        profile = None
        for number in range(options.steps):
            if planned is not None and number == options.steps - PROFILED:
                profile = stack.enter_context(planned.profile())
            start = time.perf_counter()
            losses.append(step(batch_at(text, number)).item())
            seconds.append(time.perf_counter() - start)
            if number % options.every == 0 and is_first:
                print(f"step {number + 1:4} of {options.steps}  loss {losses[-1]:.4f}  {seconds[-1]:.3f} s", flush=True)
    if options.save and is_first:
        measured: dict[str, Any] = {"losses": losses, "step_s": statistics.median(seconds[2:] or seconds)}
        if planned is not None and profile is not None:
            overlaps = (found["all", "all"] for found in profile.overlaps.values() if ("all", "all") in found)
            computed = max((overlap.compute for overlap in overlaps), default=0.0)
            measured["computed"] = computed / max(rank.seconds for rank in profile.middle)
            measured["plan"] = dict(planned.plan)
        Path(options.save).write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
