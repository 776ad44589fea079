"""
Train a byte-level GPT whose matrices are split over four processes, with duplex: each batch has two parts, and one part
communicates while the other computes.

    torchrun --nproc-per-node 4 examples/duplex.py
"""

from __future__ import annotations

import sysconfig
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import shardwright as sw
from shardwright.models.gpt2 import GPT2, GPT2Config
from shardwright.models.transformer import token_cross_entropy

HERE = Path(__file__).parent
BATCH, LENGTH, STEPS = 16, 32, 5
MODEL = partial(GPT2, GPT2Config(layers=2, width=64, heads=4, vocabulary=256, positions=LENGTH))
OPTIMIZER = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
SEARCH = f'search-strategy{{algorithm=fixed pins="{HERE}/duplex/pins.toml"}}'
PIPELINE = f"prepare,{SEARCH},program{{mode=duplex parts=2}},finish"


def main() -> None:
    """Train a few steps, and compare with the one-device model, which each process also trains."""
    text = (Path(sysconfig.get_paths()["stdlib"]) / "argparse.py").read_bytes()
    windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().unfold(0, LENGTH + 1, LENGTH)
    batches = [(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) for rows in windows.split(BATCH)]
    cluster = HERE / "clusters" / "local-4.toml"
    plan = sw.PlanOptions(pipeline=PIPELINE)
    step = sw.parallelize(MODEL, token_cross_entropy, OPTIMIZER, batches[0], cluster, plan=plan)
    torch.manual_seed(0)
    alone = MODEL()
    optimizer = OPTIMIZER(alone.parameters())
    for number, (tokens, following) in enumerate(batches[:STEPS]):
        loss = step((tokens, following))
        expected = token_cross_entropy(alone(tokens), following)
        torch.testing.assert_close(loss, expected.detach())
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {number}  loss {loss:.5f}  on one device {expected:.5f}", flush=True)


if __name__ == "__main__":
    main()
