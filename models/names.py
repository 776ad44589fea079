"""The names of the shipped training steps, which command lines check and complete without importing torch."""

from __future__ import annotations

NAMES = (
    *("mlp", "gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt2-48"),
    *("gpt3-2.6b", "gpt3-5.8b", "gpt3-6.8b", "gpt3-16.5b", "gpt3-35.8b", "gpt3-175b"),
    *("bert-base", "bert-sgmoe", "bert-switch", "bert-moe", "vit-base", "vit-sgmoe", "vit-switch"),
    *("vgg13", "vgg19", "resnet50", "unet", "utransformer", "transgan", "llama-1b", "llama-8b", "mixtral-8x7b"),
    *("mlp-tiny", "gpt2-tiny", "bert-tiny", "bert-sgmoe-tiny", "bert-switch-tiny", "vit-tiny", "vit-sgmoe-tiny"),
    *("vit-switch-tiny", "vgg13-tiny", "vgg19-tiny", "vgg19-bn-tiny", "resnet50-tiny", "unet-tiny"),
    *("utransformer-tiny", "transgan-tiny", "llama-tiny", "mixtral-tiny"),
)
"""The keys of `registry.MODELS`."""
