"""
Measure the cost of sorting tokens within rows of the batch if rows are not split, and the gain if they are.

    python benchmarks/grouped_products.py [--widths 128 512] [--ranks 1 2] [--turns 40]

A Llama of two layers with eight dropless experts (`mixtral(8)`) trains by AdamW in float32, on one device and by `dp`.
Our program with the default passes is compared with three others: without `sort-within-rows`, so that the tokens of the
whole batch are sorted together; without `sort-across-rows`, so that each sequence keeps its own list, as if the batch
were split unevenly; and eager PyTorch (DistributedDataParallel on several ranks). All sides take the same steps in the
same processes, in random order. Figures are processor seconds of all threads of all ranks: the median of the paired
ratios to the program without `sort-within-rows`, with a 95 % bootstrap interval. The control `A/A` is a second copy of
that program.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from _report import interval, parsed, publish
from parity import cluster_of, our_side, processor_seconds, their_side
from xdsl.passes import ModulePass

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.models.llama import LlamaConfig, llama_step
from shardwright.models.moe import mixtral
from shardwright.passes.fit_memory import FitMemoryPass
from shardwright.passes.pipeline import Pipeline
from shardwright.runtime import run_ranks

_WITHIN = "sort-within-rows"

SIDES = {"program": (), "by row": ("sort-across-rows",), "without": (_WITHIN,), "A/A": (_WITHIN,)}
"""Our programs, and the passes that each leaves out."""


def mixture_step(width: int) -> TrainingStep:
    """Return a step on eight sequences of 128 tokens."""
    heads = width // 32
    config = LlamaConfig(2, width, heads, heads // 2, 2 * width, vocabulary=1024, experts=mixtral(8))
    return llama_step(config, batch=8, length=128)


def plan_text(step: TrainingStep, ranks: int, without: Collection[str]) -> str:
    """Return the program of a step by the default passes without some, data-parallel on several ranks."""
    cluster = cluster_of(ranks, "local-4")
    options = PlanOptions("fixed", "dp") if ranks > 1 else PlanOptions("eliminate")
    passes = (_without(item, without) for item in options.passes(cluster) if item.name not in without)
    return compile_step(step, cluster, PlanOptions(pipeline=Pipeline.of(*passes))).program


def _without(given: ModulePass, names: Collection[str]) -> ModulePass:
    """Return a pass. If it runs a pipeline, the pipeline is stripped of the named passes."""
    if not isinstance(given, FitMemoryPass):
        return given
    passes = (item for item in Pipeline.parse(given.pipeline) if item.name not in names)
    return replace(given, pipeline=str(Pipeline.of(*passes)))


def eager_side(step: TrainingStep) -> Callable[[], None]:
    """Return a function that runs a step of eager PyTorch on this rank's part of the batch."""
    if dist.get_world_size() > 1:
        return their_side(step, "", "ddp")
    torch.manual_seed(0)
    model = step.build_model()
    optimizer = step.optimizer(model.parameters())

    def run() -> None:
        optimizer.zero_grad()
        step.compute_loss(model).backward()
        optimizer.step()

    return run


def worker(width: int, texts: Sequence[str], turns: int) -> list[list[float]]:
    """Return this rank's processor seconds of each turn: of our programs, and of eager PyTorch."""
    torch.set_num_threads(1)
    step = mixture_step(width)
    sides = [*(our_side(step, text, "") for text in texts), eager_side(step)]
    order, generator = list(range(len(sides))), random.Random(0)
    rows: list[list[float]] = []
    for turn in range(-3, turns):
        generator.shuffle(order)
        used = [0.0] * len(sides)
        for index in order:
            dist.barrier()
            before = processor_seconds()
            sides[index]()
            dist.barrier()
            used[index] = processor_seconds() - before
        if turn >= 0:
            rows.append(used)
    return rows


def compare(width: int, ranks: int, turns: int) -> dict[str, Any]:
    """Return one row: a width on a number of ranks."""
    step = mixture_step(width)
    texts = [plan_text(step, ranks, without) for without in SIDES.values()]
    by_rank = run_ranks(worker, ranks, width, texts, turns, timeout=3000)
    used = [[sum(each) for each in zip(*turn, strict=True)] for turn in zip(*by_rank, strict=True)]
    base = list(SIDES).index("without")
    row: dict[str, Any] = {"width": width, "ranks": ranks, "turns": turns}
    row["without ms"] = 1e3 * statistics.median(each[base] for each in used)
    for index, name in enumerate((*SIDES, "eager")):
        if index != base:
            ratios = [each[index] / each[base] for each in used]
            row[name] = statistics.median(ratios)
            row[f"{name} 95 %"] = "{:.3f} to {:.3f}".format(*interval(ratios))
    return row


def main() -> None:
    """Print the table, and write a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=40)
    options = parsed(parser, widths=[128], ranks=[1], turns=2)
    rows = [compare(width, ranks, options.turns) for width in options.widths for ranks in options.ranks]
    shown = f"--widths {' '.join(map(str, options.widths))} --ranks {' '.join(map(str, options.ranks))}"
    publish("grouped_products", rows, command=f"python benchmarks/grouped_products.py {shown} --turns {options.turns}")


if __name__ == "__main__":
    main()
