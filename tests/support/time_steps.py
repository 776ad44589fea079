"""Small models with a batch of sixteen: four parts of four rows, one row for each of four ranks."""

from __future__ import annotations

from shardwright.api.training_step import TrainingStep
from shardwright.models.bert import BertConfig, bert_step
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.vit import ViTConfig, vit_step


def gpt2() -> TrainingStep:
    """Next-token prediction."""
    config = GPT2Config(layers=2, width=32, heads=4, vocabulary=101, positions=24)
    return gpt2_step(config, batch=16, length=16)


def bert() -> TrainingStep:
    """Masked tokens: the number of labels that are not ignored differs between rows."""
    config = BertConfig(layers=2, width=32, heads=4, vocabulary=101, positions=24)
    return bert_step(config, batch=16, length=16)


def vit() -> TrainingStep:
    """Classification of images."""
    return vit_step(ViTConfig(layers=2, width=32, heads=4, image=32, patch=8, classes=10), batch=16)
