"""
Train a byte-level GPT on processes of different speeds, each with a share of every batch that matches its speed.

    torchrun --nproc-per-node 4 examples/uneven.py

In the cluster file the last process is slower. It gets fewer rows; the loss equals the loss on one device.
"""

from __future__ import annotations

import sysconfig
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import shardwright as sw
from shardwright.models.gpt2 import GPT2, GPT2Config
from shardwright.models.transformer import token_cross_entropy

CLUSTER = Path(__file__).parent / "clusters" / "uneven-4.toml"
BATCH, LENGTH, STEPS = 16, 32, 5
MODEL = partial(GPT2, GPT2Config(layers=2, width=64, heads=4, vocabulary=256, positions=LENGTH))
OPTIMIZER = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def read_text() -> TensorDataset:
    """Return windows of the bytes of a Python source, each with its next tokens."""
    text = (Path(sysconfig.get_paths()["stdlib"]) / "argparse.py").read_bytes()
    windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().unfold(0, LENGTH + 1, LENGTH)
    return TensorDataset(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


def main() -> None:
    """Train a few steps, and compare with the one-device model, which each process also trains."""
    data = read_text()
    plan = sw.PlanOptions(algorithm="fixed", pins="dp")
    step = sw.parallelize(MODEL, token_cross_entropy, OPTIMIZER, data[:BATCH], CLUSTER, plan=plan)
    print(f"rank {dist.get_rank()} takes rows {step.rows.start} to {step.rows.stop} of {BATCH}", flush=True)
    torch.manual_seed(0)
    alone = MODEL()
    optimizer = OPTIMIZER(alone.parameters())
    mine = DataLoader(data, batch_sampler=step.sampler(len(data)), collate_fn=step.collate)
    whole = DataLoader(data, batch_sampler=sw.ShareSampler(len(data), BATCH, range(BATCH)))
    for number, part, (tokens, following) in zip(range(STEPS), mine, whole, strict=False):
        loss = step(step.local(part))
        expected = token_cross_entropy(alone(tokens), following)
        torch.testing.assert_close(loss, expected.detach())
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {number}  loss {loss:.5f}  on one device {expected:.5f}", flush=True)


if __name__ == "__main__":
    main()
