"""The steps whose time and memory are measured, in sizes for GPUs and for CPUs."""

from __future__ import annotations

from dataclasses import replace

from shardwright.api.training_step import TrainingStep
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.mlp import mlp_step
from shardwright.models.vgg import VGG13, VGGConfig, vgg_step

from .job import Job

_ON_GPUS = GPT2Config(layers=8, width=1024, heads=16, vocabulary=32768, positions=512)
_ON_CPUS = GPT2Config(layers=2, width=128, heads=4, vocabulary=512, positions=64)
"""The numbers of heads and the widths are multiples of 2, 4 and 8, as torch's tensor parallelism requires."""


def sized_step(job: Job, name: str) -> TrainingStep:
    """
    Return ``gpt2``, ``gpt2 bf16`` (in mixed precision), ``mlp`` or ``vgg`` in the job's size: at least eight sequences
    per GPU, or eight in total on CPUs.
    """
    family, _, mixed = name.partition(" ")
    step = _made(job, family)
    return replace(step, precision="bf16-mixed") if mixed else step


def _made(job: Job, family: str) -> TrainingStep:
    gpus = job.world if job.is_cuda else 0
    if family == "gpt2":
        return gpt2_step(_ON_GPUS if gpus else _ON_CPUS, batch=8 * max(gpus, 1), length=512 if gpus else 64)
    if family == "mlp":
        sizes = (4096, 8192, 8192, 8192, 1024) if gpus else (256, 512, 512, 64)
        return mlp_step(sizes, batch=1024 * gpus if gpus else 512)
    if family == "vgg":
        config = VGGConfig(convolutions=VGG13, image=64 if gpus else 32, classes=10)
        config = config if gpus else replace(config, widths=(8, 16, 32, 32, 32), hidden=256)
        return vgg_step(config, batch=32 * max(gpus, 1))
    raise ValueError(f"no step is called {family!r}; there are gpt2, mlp and vgg")
