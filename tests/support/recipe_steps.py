"""Steps with usual training recipes: groups of parameters by name, and clipped gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import time_steps
import torch
import torch.nn.functional as F
from torch import nn

from shardwright.api.training_step import LossScaling, TrainingStep
from shardwright.lowering.capture.calling import ReduceDtype
from shardwright.models.registry import training_step

CLIP = 0.1
"""Far below the norm of gradients in the first steps, so that clipping takes effect."""


def by_groups(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Return AdamW that decays only matrices, and trains the other parameters at another rate."""
    named = list(named_parameters)
    matrices = [parameter for _, parameter in named if parameter.dim() >= 2]
    others = [parameter for _, parameter in named if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0, "lr": 3e-3}]
    return torch.optim.AdamW(groups, lr=1e-3)


def sgd_by_groups(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return SGD with two groups, only one of them with momentum."""
    listed = list(parameters)
    groups = [{"params": listed[::2], "momentum": 0.9, "nesterov": True}, {"params": listed[1::2], "lr": 0.02}]
    return torch.optim.SGD(groups, lr=0.05)


def metrics(output: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return usual metrics: a fraction of the whole batch, a sum, and the mean of the model's output."""
    right = output.argmax(-1) == labels
    return {"accuracy": right.float().mean(), "right": right.sum(), "output": output.mean()}


def gpt2() -> TrainingStep:
    """Next-token prediction with two groups, clipping by norm, and metrics."""
    return replace(time_steps.gpt2(), optimizer=by_groups, clip_norm=CLIP, metrics=metrics)


def vgg() -> TrainingStep:
    """Convolutions, batch norm and dropout, with clipping by value before clipping by norm."""
    return replace(training_step("vgg19-tiny"), optimizer=sgd_by_groups, clip_norm=CLIP, clip_value=1e-3)


def mixed_gpt2() -> TrainingStep:
    """Next-token prediction in the bfloat16 of autocast."""
    return replace(time_steps.gpt2(), precision="bf16-mixed")


def scaled_gpt2(optimizer: Callable[..., torch.optim.Optimizer]) -> TrainingStep:
    """
    Next-token prediction in the float16 of autocast.

    Gradients overflow from a scale of about 2**18.5 on, and gradients of micro-batches from a larger scale on. The
    scales used are far from both: two steps are skipped, two are not, and the next is skipped again.
    """
    scaling = LossScaling(2.0**30, growth_factor=2.0**8, backoff_factor=2.0**-8, growth_interval=2)
    return replace(time_steps.gpt2(), precision="fp16-mixed", optimizer=optimizer, loss_scaling=scaling)


def mixed_vit() -> TrainingStep:
    """Classification of images in the bfloat16 of autocast."""
    return replace(time_steps.vit(), precision="bf16-mixed")


def reducing_in(make: Callable[[], TrainingStep], reduce_dtype: ReduceDtype | None) -> TrainingStep:
    """Return a step whose gradients are reduced over devices in `reduce_dtype`."""
    return replace(make(), reduce_dtype=reduce_dtype)


def vit() -> TrainingStep:
    """Classification of images with attention, two groups, clipping by norm, and metrics."""
    return replace(time_steps.vit(), optimizer=by_groups, clip_norm=CLIP, metrics=metrics)


def moe() -> TrainingStep:
    """A mixture of experts with a router; the norm for clipping includes all experts."""
    return replace(training_step("mixtral-tiny"), optimizer=by_groups, clip_norm=CLIP)


def lora() -> TrainingStep:
    """GPT-2 of Hugging Face, frozen except for the adapters of the peft library, with their dropout."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=4, vocab_size=101, n_positions=32, bos_token_id=0, eos_token_id=0, use_cache=False
    )

    adapters = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    model = get_peft_model(GPT2LMHeadModel(config), adapters)  # pyright: ignore[reportArgumentType]
    tokens = torch.randint(101, (8, 16), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": tokens, "labels": tokens}
    return TrainingStep(model, _next_token, partial(torch.optim.AdamW, lr=1e-2), batch, clip_norm=CLIP)


def _next_token(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the next-token loss in the dtype of the weights; the model's own loss is always in float32."""
    return F.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
