"""
Train a byte-level GPT on text, on as many processes as torchrun starts.

    torchrun --nproc-per-node 4 examples/train_gpt.py --text FILE --cluster examples/clusters/local-4.toml

Except for the call of `parallelize`, which names the cluster, this is a script for one device.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sysconfig
import time
from functools import partial
from pathlib import Path

import torch

import shardwright as sw
from shardwright.models.gpt2 import GPT2, GPT2Config
from shardwright.models.transformer import token_cross_entropy

CONFIG = GPT2Config(layers=4, width=256, heads=4, vocabulary=256, positions=128)
BATCH, LENGTH = 16, 128


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


def main() -> None:
    """Train; the first process prints the loss and writes the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save")
    options = parser.parse_args()

    text = read_text(options.text)
    step = sw.parallelize(
        partial(GPT2, CONFIG),
        token_cross_entropy,
        partial(torch.optim.AdamW, lr=1e-3),
        batch_at(text, 0),
        cluster=options.cluster,
    )
    losses: list[float] = []
    seconds: list[float] = []
    for number in range(options.steps):
        start = time.perf_counter()
        losses.append(float(step(batch_at(text, number))))
        seconds.append(time.perf_counter() - start)
        if number % 10 == 0 and int(os.environ.get("RANK", "0")) == 0:
            print(f"step {number:4}  loss {losses[-1]:.4f}  {seconds[-1]:.3f} s", flush=True)
    if options.save and int(os.environ.get("RANK", "0")) == 0:
        measured = {"losses": losses, "step_s": statistics.median(seconds[2:]), "plan": dict(step.plan)}
        Path(options.save).write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
