"""
The shipped training steps by name, at the sizes of the papers and at test size.

Each ``-tiny`` step has the structure of its large sibling at a size for tests: two layers (all convolutions of VGG),
four heads and a batch of eight, so that eight ranks divide the batch evenly, the odd vocabulary unevenly, and cannot
divide the heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..api.step_names import unknown_model
from ..api.training_step import TrainingStep
from .bert import BertConfig, bert_step
from .gpt2 import GPT2Config, gpt2_step
from .llama import LlamaConfig, llama_step
from .mlp import mlp_step
from .moe import MoEConfig, mixtral, sparsely_gated, switch
from .resnet import ResNetConfig, resnet_step
from .transgan import TransGANConfig, transgan_step
from .unet import UNetConfig, unet_step
from .vgg import VGG13, VGGConfig, vgg_step
from .vit import ViTConfig, vit_step

Maker = Callable[[], TrainingStep]


def _gpt2(layers: int, width: int, heads: int) -> Maker:
    """Return a GPT-2 of the published family."""
    return partial(gpt2_step, GPT2Config(layers=layers, width=width, heads=heads), batch=64, length=256)


def _gpt3(layers: int, width: int, heads: int) -> Maker:
    """Return a GPT with the widths of GPT-3, on full sequences."""
    config = GPT2Config(layers=layers, width=width, heads=heads, vocabulary=51200, positions=1024)
    return partial(gpt2_step, config, batch=64, length=1024)


def _sparse_bert(experts: MoEConfig) -> Maker:
    """Return HiDup's BERT with experts for eight devices: 32 sequences per device, the vocabulary of WikiText."""
    config = BertConfig(layers=8, vocabulary=33278, positions=128, experts=experts, tied=False)
    return partial(bert_step, config, batch=256, length=128)


def _sparse_vit(experts: MoEConfig) -> Maker:
    """Return HiDup's ViT with experts for eight devices: 32 CIFAR-10 images of 64 patches per device."""
    config = ViTConfig(layers=8, image=32, patch=4, classes=10, experts=experts)
    return partial(vit_step, config, batch=256)


_LARGE: dict[str, Maker] = {
    "mlp": partial(mlp_step, (784, 4096, 4096, 10), batch=256),
    "gpt2-small": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "gpt2-48": _gpt2(48, 768, 12),
    "gpt3-2.6b": _gpt3(32, 2560, 32),
    "gpt3-5.8b": _gpt3(28, 4096, 32),
    "gpt3-6.8b": _gpt3(8, 8192, 64),
    "gpt3-16.5b": _gpt3(20, 8192, 64),
    "gpt3-35.8b": _gpt3(44, 8192, 64),
    "gpt3-175b": _gpt3(96, 12288, 96),
    "bert-base": partial(bert_step, BertConfig(), batch=64, length=256),
    "bert-sgmoe": _sparse_bert(sparsely_gated(8)),
    "bert-switch": _sparse_bert(switch(8)),
    "bert-moe": _sparse_bert(sparsely_gated(16)),
    "vit-base": partial(vit_step, ViTConfig(), batch=64),
    "vit-sgmoe": _sparse_vit(sparsely_gated(16, dispatch="scatter")),
    "vit-switch": _sparse_vit(switch(16, dispatch="scatter")),
    "vgg13": partial(vgg_step, VGGConfig(convolutions=VGG13), batch=64),
    "vgg19": partial(vgg_step, VGGConfig(), batch=64),
    "resnet50": partial(resnet_step, ResNetConfig(), batch=256),
    "unet": partial(unet_step, UNetConfig(), batch=16),
    "utransformer": partial(
        unet_step, UNetConfig(widths=(472, 944, 1888, 3776, 7552), image=64, attention=2), batch=64
    ),
    "transgan": partial(transgan_step, TransGANConfig(), batch=64),
    "llama-1b": partial(llama_step, LlamaConfig(layers=16, width=2048, hidden=8192, tied=True), batch=64, length=1024),
    "llama-8b": partial(llama_step, LlamaConfig(), batch=64, length=1024),
    "mixtral-8x7b": partial(
        llama_step, LlamaConfig(vocabulary=32000, base=1e6, experts=mixtral(8)), batch=64, length=1024
    ),
}

_GPT2 = GPT2Config(layers=2, width=32, heads=4, vocabulary=101, positions=24)
_BERT = BertConfig(layers=2, width=32, heads=4, vocabulary=101, positions=24)
_VIT = ViTConfig(layers=2, width=32, heads=4, image=32, patch=8, classes=10)
_VGG = VGGConfig(widths=(4, 8, 16, 32, 32), hidden=64, image=32, classes=10)
_UNET = UNetConfig(widths=(6, 8, 12), image=16, channels=3, classes=3, heads=4)
_LLAMA = LlamaConfig(layers=2, width=32, heads=4, key_heads=2, hidden=48, vocabulary=101)
_TRANSGAN = TransGANConfig((2, 0, 1), ("bicubic", "shuffle"), bottom=3, width=64, window=4, latent=12)


def _tiny_bert(experts: MoEConfig) -> Maker:
    return partial(bert_step, replace(_BERT, experts=experts, tied=False), batch=8, length=16)


def _tiny_vit(experts: MoEConfig) -> Maker:
    return partial(vit_step, replace(_VIT, experts=experts), batch=8)


_TINY: dict[str, Maker] = {
    "mlp": partial(mlp_step, (12, 32, 32, 10), batch=8),
    "gpt2": partial(gpt2_step, _GPT2, batch=8, length=16),
    "bert": partial(bert_step, _BERT, batch=8, length=16),
    "bert-sgmoe": _tiny_bert(sparsely_gated(4)),
    "bert-switch": _tiny_bert(switch(4)),
    "vit": partial(vit_step, _VIT, batch=8),
    "vit-sgmoe": _tiny_vit(sparsely_gated(4, dispatch="scatter")),
    "vit-switch": _tiny_vit(switch(4, dispatch="scatter")),
    "vgg13": partial(vgg_step, replace(_VGG, convolutions=VGG13), batch=8),
    "vgg19": partial(vgg_step, _VGG, batch=8),
    "vgg19-bn": partial(vgg_step, replace(_VGG, batch_norm=True), batch=8),
    "resnet50": partial(resnet_step, ResNetConfig(blocks=(1, 2), width=4, image=32, classes=10), batch=8),
    "unet": partial(unet_step, _UNET, batch=8),
    "utransformer": partial(unet_step, replace(_UNET, attention=2), batch=8),
    "transgan": partial(transgan_step, _TRANSGAN, batch=8),
    "llama": partial(llama_step, _LLAMA, batch=8, length=16),
    "mixtral": partial(llama_step, replace(_LLAMA, experts=mixtral(4)), batch=8, length=16),
}

MODELS: dict[str, Maker] = {**_LARGE, **{f"{name}-tiny": make for name, make in _TINY.items()}}
"""The function that makes each step, by name; it allocates the batch but no weights."""


def training_step(name: str) -> TrainingStep:
    """
    Return the shipped training step called `name`.

    Raises:
        ValueError: no step has this name; the message lists the names and the closest one.
    """
    if name in MODELS:
        return MODELS[name]()
    raise ValueError(unknown_model(name, MODELS))
