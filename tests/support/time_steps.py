"""The small models with a batch of sixteen: four parts of four rows, one for each of four ranks."""

from __future__ import annotations

from functools import partial

from shardwright.api.training_step import TrainingStep
from shardwright.models.registry import MODELS


def gpt2() -> TrainingStep:
    """Next-token prediction."""
    return partial(MODELS["gpt2-tiny"], batch=16)()


def bert() -> TrainingStep:
    """Masked tokens: the labels that count differ from row to row."""
    return partial(MODELS["bert-tiny"], batch=16)()


def vit() -> TrainingStep:
    """Classification of images."""
    return partial(MODELS["vit-tiny"], batch=16)()
