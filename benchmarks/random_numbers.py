"""
Random numbers by position: measure the cost of a dropout mask, or check that models with dropout train as on one
device.

    python benchmarks/random_numbers.py [--rounds 15] [--training]

Times are of dropout's forward on one thread, in alternation with torch's own; the ratio is the median of the paired
ratios. `--training` compares GPT-2, BERT and ViT at test size, with their papers' dropout of 0.1, on gloo processes
with eager PyTorch that draws the same numbers (`counter_random`), over three steps: losses, gradients, and all
parameters and states.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from _report import Rows, arguments, parsed, plot_ratios, publish, ratio
from split_cluster import split_cluster

from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.check import check_on_ranks
from shardwright.api.training_step import TrainingStep
from shardwright.ir.counter import step_seed
from shardwright.ir.mesh import parse_mesh
from shardwright.models.bert import BertConfig, bert_step
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.vit import ViTConfig, vit_step
from shardwright.runtime.counter_random import random_dropout

SHAPE, P = (64, 256, 768), 0.1
SIZES: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "dropout": P}
STEPS: dict[str, Callable[[], TrainingStep]] = {
    "gpt2": partial(gpt2_step, GPT2Config(vocabulary=101, positions=24, **SIZES), batch=8, length=16),
    "bert": partial(bert_step, BertConfig(vocabulary=101, positions=24, **SIZES), batch=8, length=16),
    "vit": partial(vit_step, ViTConfig(image=32, patch=8, classes=10, **SIZES), batch=8),
}
SHARES = 'search-strategy,balance-ratios{ratios="0.4,0.3,0.2,0.1"}'
STAGES = 'partition-stages{stages=2 ranks="2,2"},search-strategy,program{mode=pipeline parts=4 schedule=1f1b}'


FORMS: dict[str, tuple[str, str | None, str | None]] = {
    "searched": ("2", None, None),
    "searched, 4 ranks": ("4", None, None),
    "searched, 2x2": ("2x2", None, None),
    "data-parallel": ("4", "dp", None),
    "tensor-parallel": ("4", "tp", None),
    "zero3": ("4", "zero3", None),
    "uneven shares": ("4", None, f"prepare,{SHARES},program,finish"),
    "duplex, 2x2": ("2x2", None, "prepare,search-strategy,program{mode=duplex parts=2},finish"),
    "four parts, uneven": ("4", None, f"prepare,{SHARES},program{{parts=4}},finish"),
    "two stages, four parts": ("4", None, f"prepare,{STAGES},finish"),
}
"""Ways to spread a step: a mesh, optional pins, and an optional pipeline that replaces the usual passes."""


def measure_speed(rounds: int) -> None:
    """Publish the table of times."""
    torch.set_num_threads(1)
    x, seed = torch.randn(SHAPE), torch.tensor(step_seed(0, 0))
    half = x[:, :, 1:385].contiguous()
    middle: dict[str, Any] = {"start": (0, 0, 1), "whole": SHAPE}
    kinds: dict[str, Callable[[], object]] = {
        "torch.native_dropout": lambda: torch.native_dropout(x, P, True),
        "by place": lambda: random_dropout(x, seed, P, stream=0),
        "by place, half of every row": lambda: random_dropout(half, seed, P, stream=0, **middle),
        "independent": lambda: random_dropout(x, seed, P, stream=0, independent=True),
    }
    for function in kinds.values():
        function()
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for name, function in (pair for _ in range(rounds) for pair in kinds.items()):
        start = time.perf_counter()
        function()
        taken[name].append(time.perf_counter() - start)
    base, rows = taken["torch.native_dropout"], Rows()
    for name, seconds in taken.items():
        rows.append({"dropout": name, "ms": 1e3 * statistics.median(seconds), **ratio(seconds, base)})
    publish("random_numbers", rows)
    title, xlabel = "Dropout by place", "time / that of torch's dropout"
    plot_ratios("random_numbers", rows, lambda row: row["dropout"], title=title, xlabel=xlabel)


def cases() -> Iterator[tuple[str, CheckCase]]:
    """Yield every model in every form, in both precisions."""
    for (form, (sizes, pins, pipeline)), step in product(FORMS.items(), STEPS.values()):
        mesh = parse_mesh(sizes)
        more = {"steps": 3, "cluster": split_cluster(mesh), "pipeline": pipeline}
        for dtype, optimizer in ((torch.float32, "sgd"), (torch.float64, "adamw")):
            yield form, CheckCase(step, mesh, pins, dtype, optimizer, **more)


def measure_training() -> None:
    """Publish the table of errors."""
    rows = Rows()
    for ranks in (2, 4):
        own = [(form, case) for form, case in cases() if case.mesh.device_count == ranks]
        for (form, case), result in zip(own, check_on_ranks([case for _, case in own], ranks), strict=True):
            worst = {error.kind: error.error for error in result.errors}
            model = next(name for name, step in STEPS.items() if step is case.step)
            row = {"model": model, "form": form, "ranks": ranks, "dtype": str(case.dtype).removeprefix("torch.")}
            row |= {"loss": worst.get("loss"), "gradient": worst.get("gradient")}
            rows.append(row | {"worst": max(worst.values(), default=float("inf")), "agrees": result.passed})
    publish("dropout", rows)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--training", action="store_true")
    options = parsed(parser, rounds=1)
    if options.training:
        measure_training()
    else:
        measure_speed(options.rounds)


if __name__ == "__main__":
    main()
