"""Steps on clusters with very different links or devices, where the best plan leaves devices or an axis idle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from shardwright.api.training_step import TrainingStep
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.mlp import mlp_step

CLUSTERS = Path(__file__).parent / "clusters"
"""Folder of the cluster files: six homes, a host with a remote slower device, two sites, two hosts."""

_GPT = GPT2Config(layers=6, width=384, heads=6, vocabulary=8192, positions=256)

STEPS: Mapping[str, Callable[[], TrainingStep]] = {
    "gpt-6x384": partial(gpt2_step, _GPT, batch=24, length=256),
    "mlp-8x512": partial(mlp_step, (256,) + (512,) * 8 + (10,), batch=8192),
    "mlp-4x4096": partial(mlp_step, (1024,) + (4096,) * 4 + (1000,), batch=2048),
    "mlp-small": partial(mlp_step, (512, 2048, 2048, 512, 10), batch=96),
}
"""The steps, by name."""

PAIRS = [
    ("gpt-6x384", "home-6"),
    ("mlp-8x512", "slow-one"),
    ("mlp-4x4096", "wan-2x8"),
    ("mlp-small", "two-of-three"),
    ("mlp-4x4096", "home-6"),
    ("gpt-6x384", "slow-one"),
    ("gpt-6x384", "wan-2x8"),
    ("gpt-6x384", "two-of-three"),
]
"""Steps with the names of their clusters."""
