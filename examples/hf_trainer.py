"""
Hugging Face's Trainer, on several devices or on one.

    torchrun --nproc-per-node 2 examples/hf_trainer.py [--cluster FILE]
    python examples/hf_trainer.py    # the plain Trainer, to compare

The arguments, the data and the loop belong to the Trainer: a linear schedule with a warm-up, clipped gradients, logs,
evaluation, and the trained weights saved in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

CONFIG = GPT2Config(
    vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
)
BATCH, LENGTH, STEPS = 8, 32, 12


class Windows(Dataset[dict[str, torch.Tensor]]):
    """Windows of the bytes of a Python module: tokens, and the same tokens as labels, because the model shifts them."""

    def __init__(self, module: str, count: int) -> None:
        source = (Path(sysconfig.get_paths()["stdlib"]) / module).read_bytes()
        self.windows = torch.frombuffer(bytearray(source), dtype=torch.uint8).long().unfold(0, LENGTH, 16)[:count]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.windows[index], "labels": self.windows[index]}


def main() -> None:
    """Train, evaluate and save; the first process prints the log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--out", default=tempfile.mkdtemp())
    options = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))

    torch.manual_seed(0)
    model = GPT2LMHeadModel(CONFIG)
    arguments = TrainingArguments(
        options.out,
        per_device_train_batch_size=BATCH // ranks,
        per_device_eval_batch_size=BATCH // ranks,
        max_steps=STEPS,
        learning_rate=3e-3,
        weight_decay=0.1,
        warmup_steps=3,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=6,
        save_strategy="no",
        disable_tqdm=True,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    )
    data: dict[str, Any] = {"train_dataset": Windows("argparse.py", 64), "eval_dataset": Windows("ast.py", 32)}
    if ranks > 1:
        from shardwright.models.hf.trainer import DistributedTrainer

        trainer = DistributedTrainer(model, arguments, **data, parallelize={"cluster": options.cluster})
    else:
        trainer = Trainer(model, arguments, **data)
    trainer.train()
    trainer.save_model()
    if trainer.is_world_process_zero():
        print(json.dumps(trainer.state.log_history), flush=True)


if __name__ == "__main__":
    main()
