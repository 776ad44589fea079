"""
Measure the cost of sorting tokens within rows of the batch if rows are not split, and the gain if they are.

    python benchmarks/grouped_products.py [--widths 128 512] [--ranks 1 2] [--turns 40]

A Llama of two layers with eight dropless experts (`mixtral(8)`) trains by AdamW in float32, on one device and by `dp`.
Our program with the default passes is compared with three others: without `sort-within-rows`, so that the tokens of the
whole batch are sorted together; without `sort-across-rows`, so that each sequence keeps its own list, as if the batch
were split unevenly; and eager PyTorch (DistributedDataParallel on several ranks). Figures are processor seconds of all
threads of all ranks: the median of the paired ratios to the program without `sort-within-rows`, with a 95 % bootstrap
interval. The control `A/A` is a second copy of that program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from _report import arguments, parsed, publish, ratio
from _sides import Ours, Peer, compared, middle_ms
from parity import cluster_of
from xdsl.passes import ModulePass

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.models.llama import LlamaConfig, llama_step
from shardwright.models.moe import mixtral
from shardwright.passes.fit_memory import FitMemoryPass
from shardwright.passes.pipeline import Pipeline

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

    def kept(passes: Iterable[ModulePass]) -> Pipeline:
        return Pipeline.of(*(item for item in passes if item.name not in without))

    passes = (
        replace(item, pipeline=str(kept(Pipeline.parse(item.pipeline)))) if isinstance(item, FitMemoryPass) else item
        for item in kept(options.passes(cluster))
    )
    return compile_step(step, cluster, PlanOptions(pipeline=Pipeline.of(*passes))).program


def compare(width: int, ranks: int, turns: int) -> dict[str, Any]:
    """Return one row: a width on a number of ranks."""
    make = partial(mixture_step, width)
    ours = [Ours(plan_text(make(), ranks, without)) for without in SIDES.values()]
    _, used = compared(make, ranks, [*ours, Peer("ddp" if ranks > 1 else "eager")], turns)
    by_side = dict(zip((*SIDES, "eager"), used, strict=True))
    base = by_side.pop("without")
    row: dict[str, Any] = {"width": width, "ranks": ranks, "turns": turns, "without ms": middle_ms(base)}
    for name, seconds in by_side.items():
        columns = ratio(seconds, base)
        row |= {name: columns["ratio"], f"{name} 95 %": f"{columns['low']:.3f} to {columns['high']:.3f}"}
    return row


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=40)
    options = parsed(parser, widths=[128], ranks=[1], turns=2)
    rows = [compare(width, ranks, options.turns) for width, ranks in product(options.widths, options.ranks)]
    publish("grouped_products", rows)


if __name__ == "__main__":
    main()
