"""The steps that are planned, predicted and measured. Ranks import this module without loading the planner."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shardwright.api.training_step import TrainingStep
from shardwright.models.bert import BertConfig, bert_step
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.mlp import mlp_step
from shardwright.models.moe import switch
from shardwright.models.vgg import VGG13, VGGConfig, vgg_step
from shardwright.models.vit import ViTConfig, vit_step


def _gpt2(layers: int, width: int, length: int, vocabulary: int) -> Callable[[], TrainingStep]:
    config = GPT2Config(layers=layers, width=width, heads=4, vocabulary=vocabulary, positions=length)
    return partial(gpt2_step, config, batch=8, length=length)


def _moe(width: int, batch: int) -> Callable[[], TrainingStep]:
    experts = switch(4)
    config = BertConfig(layers=2, width=width, heads=4, vocabulary=512, positions=64, experts=experts, tied=False)
    return partial(bert_step, config, batch=batch, length=64)


def _vgg(widths: tuple[int, ...], hidden: int, batch: int) -> Callable[[], TrainingStep]:
    config = VGGConfig(convolutions=VGG13, widths=widths, hidden=hidden, image=32, classes=10)
    return partial(vgg_step, config, batch=batch)


def _vit(layers: int, width: int, batch: int) -> Callable[[], TrainingStep]:
    config = ViTConfig(layers=layers, width=width, heads=4, image=32, patch=4, classes=10)
    return partial(vit_step, config, batch=batch)


STEPS: dict[str, Callable[[], TrainingStep]] = {
    "mlp-small": partial(mlp_step, (256, 512, 512, 64), batch=1024),
    "mlp-large": partial(mlp_step, (512, 1024, 1024, 1024, 128), batch=1024),
    "gpt2-small": _gpt2(2, 128, 64, 512),
    "gpt2-large": _gpt2(4, 256, 128, 2048),
    "vit-small": _vit(2, 128, 16),
    "vit-large": _vit(4, 256, 32),
    "vgg-small": _vgg((16, 32, 64, 64, 64), 512, 32),
    "vgg-large": _vgg((32, 64, 128, 128, 128), 2048, 64),
    "moe-small": _moe(128, 16),
    "moe-large": _moe(256, 32),
}
"""The steps, by name."""
