"""Steps for clusters of thousands of devices."""

from __future__ import annotations

from shardwright.api.training_step import TrainingStep
from shardwright.models.gpt2 import GPT2Config, gpt2_step


def gpt_wide() -> TrainingStep:
    """Return the step of four GPT layers with the width of GPT-3, on a thousand full sequences."""
    config = GPT2Config(layers=4, width=12288, heads=96, vocabulary=50304, positions=2048)
    return gpt2_step(config, batch=1024, length=2048)
