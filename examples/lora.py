"""
Fine-tune GPT-2 of Hugging Face with LoRA adapters of the peft library.

    torchrun --nproc-per-node 2 examples/lora.py [--steps N] [--cluster FILE]
    python examples/lora.py --single    # on one device, in plain PyTorch

The weights of the base model are frozen: they get neither gradients nor optimizer states. The adapters are saved in the
format of peft.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from functools import partial

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import shardwright as sw

# In your script: GPT2LMHeadModel.from_pretrained("gpt2").
CONFIG = GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
CONFIG.update({"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False})
ADAPTERS = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
ADAMW = partial(torch.optim.AdamW, lr=1e-2)


def network() -> PeftModel:
    """Return GPT-2 with adapters, the only parameters that require gradients."""
    torch.manual_seed(0)
    return get_peft_model(GPT2LMHeadModel(CONFIG), ADAPTERS)  # pyright: ignore[reportArgumentType, reportReturnType]


def batch_at(number: int) -> dict[str, torch.Tensor]:
    """Return the batch of a step: tokens, and the same tokens as labels, because the model shifts them."""
    tokens = torch.randint(256, (8, 32), generator=torch.Generator().manual_seed(number))
    return {"input_ids": tokens, "labels": tokens}


def train(steps: int, cluster: str = "auto") -> Iterator[float]:
    """Train, yield the loss of every step, and save the adapters."""
    step = sw.parallelize(network(), None, ADAMW, batch_at(0), cluster)
    for number in range(steps):
        yield step(batch_at(number)).item()
    with step.module() as trained, tempfile.TemporaryDirectory() as folder:
        if step.rank == 0:
            trained.save_pretrained(folder)  # pyright: ignore[reportCallIssue]


def train_single(steps: int) -> Iterator[float]:
    """Do the same in plain PyTorch."""
    model = network()
    optimizer = ADAMW(parameter for parameter in model.parameters() if parameter.requires_grad)
    for number in range(steps):
        loss = model(**batch_at(number)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--single", action="store_true", help="train in plain PyTorch on one CPU")
    options = parser.parse_args()
    losses = train_single(options.steps) if options.single else train(options.steps, options.cluster)
    for number, loss in enumerate(losses):
        if os.environ.get("RANK", "0") == "0":
            print(f"step {number}  loss {loss:.6f}", flush=True)
