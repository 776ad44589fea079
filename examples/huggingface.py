"""
Train a Hugging Face model, made from its config, on four processes.

    torchrun --nproc-per-node 4 examples/huggingface.py

A small Llama reads bytes. No process ever holds all of its weights during training. At the end the first process has
them under the names of transformers, and loads them into an ordinary model.
"""

from __future__ import annotations

import sysconfig
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

import shardwright as sw

CLUSTER = Path(__file__).parent / "clusters" / "local-4.toml"
ROWS, LENGTH, STEPS = 16, 32, 5
CONFIG = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)


def batch_of(windows: torch.Tensor) -> dict[str, Any]:
    """Return the model's inputs: tokens, and the same tokens as labels, because the model shifts them."""
    return {"input_ids": windows, "labels": windows}


def main() -> None:
    """Train a few steps, and evaluate the trained weights in the model on one device."""
    source = (Path(sysconfig.get_paths()["stdlib"]) / "argparse.py").read_bytes()
    text = torch.frombuffer(bytearray(source), dtype=torch.uint8).long().unfold(0, LENGTH, LENGTH)
    batches = [batch_of(text[at : at + ROWS].contiguous()) for at in range(0, STEPS * ROWS, ROWS)]

    plain = sw.from_hf(CONFIG, batches[0], optimizer=partial(torch.optim.AdamW, lr=3e-3))
    step = sw.parallelize(plain.model, plain.loss, plain.optimizer, plain.batch, CLUSTER)
    for number, batch in enumerate(batches):
        loss = step(batch)
        if dist.get_rank() == 0:
            print(f"step {number}  loss {loss:.4f}", flush=True)

    weights = step.state_dict()
    if dist.get_rank() == 0:
        model = LlamaForCausalLM(CONFIG)
        model.load_state_dict(weights, strict=False)
        print(f"the trained model on one device: loss {plain.compute_loss(model, batches[-1]):.4f}", flush=True)


if __name__ == "__main__":
    main()
