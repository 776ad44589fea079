"""
The shipped training steps by name.

The ``-tiny`` ones have every structure of their large sibling at a size for tests: two layers (all
sixteen convolutions of VGG), four heads and a batch of eight, so that eight ranks divide the batch evenly,
the heads not at all, and the odd vocabulary unevenly.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial

from ..api.training_step import TrainingStep
from .bert import BertConfig, bert_step
from .gpt2 import GPT2Config, gpt2_step
from .mlp import mlp_step
from .unet import UNetConfig, unet_step
from .vgg import VGGConfig, vgg_step
from .vit import ViTConfig, vit_step

MODELS: dict[str, Callable[[], TrainingStep]] = {
    "mlp": partial(mlp_step, (784, 4096, 4096, 10), batch=256),
    "gpt2-small": partial(gpt2_step, GPT2Config(), batch=64, length=256),
    "gpt2-48": partial(gpt2_step, GPT2Config(layers=48), batch=64, length=256),
    "bert-base": partial(bert_step, BertConfig(), batch=64, length=256),
    "vit-base": partial(vit_step, ViTConfig(), batch=64),
    "vgg19": partial(vgg_step, VGGConfig(), batch=64),
    "unet": partial(unet_step, UNetConfig(), batch=16),
    "mlp-tiny": partial(mlp_step, (12, 32, 32, 10), batch=8),
    "gpt2-tiny": partial(
        gpt2_step, GPT2Config(layers=2, width=32, heads=4, vocabulary=101, positions=24), batch=8, length=16
    ),
    "bert-tiny": partial(
        bert_step, BertConfig(layers=2, width=32, heads=4, vocabulary=101, positions=24), batch=8, length=16
    ),
    "vit-tiny": partial(
        vit_step, ViTConfig(layers=2, width=32, heads=4, image=32, patch=8, classes=10), batch=8
    ),
    "vgg19-tiny": partial(
        vgg_step, VGGConfig(widths=(4, 8, 16, 32, 32), hidden=64, image=32, classes=10), batch=8
    ),
    "unet-tiny": partial(unet_step, UNetConfig(widths=(6, 8, 12), image=16, channels=3, classes=3), batch=8),
    "vgg19-bn-tiny": partial(
        vgg_step, VGGConfig(widths=(4, 8, 16, 32, 32), hidden=64, image=32, classes=10, batch_norm=True), batch=8
    ),
}
"""Name to a function of no arguments; calling it makes the batch but no weight."""


def training_step(name: str) -> TrainingStep:
    """
    The shipped training step called `name`.

    Raises:
        ValueError: there is none; the message lists the names and the closest one.
    """
    if name in MODELS:
        return MODELS[name]()
    close = difflib.get_close_matches(name, MODELS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"no shipped model is called {name!r}{hint} (there are {', '.join(sorted(MODELS))})")
