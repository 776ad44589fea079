"""
Compare our plans with `compile=True` with DistributedDataParallel and FSDP2 (`fully_shard`) under `torch.compile`.

    python benchmarks/compiled.py [--ranks 2 4] [--pairs 40] [--steps gpt2 vit vgg] [--cluster NAME|FILE]

Four sides train the same model on the same batch in the same processes, step by step in random order: ours and the
peer, each compiled and not compiled. The ratio is the median of the paired ratios ours / theirs, both compiled, with a
95 % bootstrap interval. The speed-up by compiling is reported for both. Training uses AdamW, float32 and gloo. DDP is
compiled as a whole; FSDP2 is compiled block by block if the model has blocks.

Our plans are for `local-4` or the cluster of `--cluster` (see `parity.py`), and are planned for compilation.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from _report import interval, parsed, plot_intervals, publish
from parity import PRESETS, STEPS, cluster_of, plan_text, processor_seconds
from torch import nn

from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster
from shardwright.lowering.codegen.load_program import load_text
from shardwright.models.vgg import VGG13, VGGConfig, vgg_step
from shardwright.models.vit import ViTConfig, vit_step
from shardwright.runtime import Executor, Stage, run_ranks
from shardwright.runtime.compiled.load import compiled_stages
from shardwright.runtime.stages import connect

_VIT = ViTConfig(layers=4, width=192, heads=3, image=64, patch=8, classes=100)
_VGG = VGGConfig(VGG13, widths=(16, 32, 64, 64, 64), hidden=256, image=32, classes=10)
_STEPS: dict[str, Callable[[], TrainingStep]] = {
    **STEPS,
    "vit": lambda: vit_step(_VIT, batch=16),
    "vgg": lambda: vgg_step(_VGG, batch=32),
}
SIDES = ("ours, compiled", "peer, compiled", "ours", "peer")


def our_side(step: TrainingStep, text: str, *, compiles: bool) -> Callable[[], object]:
    """Return a function that runs one step of our program."""
    stages = [Stage(*stage) for stage in load_text(text, "program.py")]
    if compiles:
        stages = compiled_stages(stages, text, torch.device("cpu"))
    executor = Executor(stages, connect(stages))
    executor.initialize(step.model, 0)
    batch = {str(i): item for i, item in enumerate(step.batch)}
    return lambda: executor.step(batch)


def their_side(step: TrainingStep, peer: str, *, compiles: bool) -> Callable[[], object]:
    """Return a function that runs one step of the peer on this rank's part of the batch."""
    torch.manual_seed(0)
    model = step.build_model()
    wrapped = _with_ddp(model, compiles) if peer == "ddp" else _with_fsdp2(model, compiles)
    optimizer = step.optimizer(model.parameters())
    rank, world = dist.get_rank(), dist.get_world_size()
    batch = tuple(item.chunk(world)[rank] for item in step.batch if isinstance(item, torch.Tensor))
    local = replace(step, batch=batch)

    def run() -> None:
        optimizer.zero_grad()
        local.compute_loss(wrapped).backward()
        optimizer.step()

    return run


def _with_ddp(model: nn.Module, compiles: bool) -> Any:
    wrapped = nn.parallel.DistributedDataParallel(model)
    return torch.compile(wrapped) if compiles else wrapped


def _with_fsdp2(model: nn.Module, compiles: bool) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    blocks = list(getattr(model, "h", []) or getattr(model, "layers", []))
    for module in (blocks or [model]) if compiles else []:
        module.compile()
    for block in blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


Row = tuple[float, ...]
"""Seconds of a step of each of `SIDES`."""


def worker(step_name: str, text: str, peer: str, pairs: int) -> list[tuple[Row, Row]]:
    """Return the seconds of each turn: wall time, and processor time of this rank."""
    torch.set_num_threads(1)
    step = _STEPS[step_name]()
    sides = [
        our_side(step, text, compiles=True),
        their_side(step, peer, compiles=True),
        our_side(step, text, compiles=False),
        their_side(step, peer, compiles=False),
    ]
    for side in sides * 4:
        side()
    order, generator = list(range(len(sides))), random.Random(0)
    rows: list[tuple[Row, Row]] = []
    for _ in range(pairs):
        generator.shuffle(order)
        seconds, used = [0.0] * len(sides), [0.0] * len(sides)
        for index in order:
            dist.barrier()
            start, before = time.perf_counter(), processor_seconds()
            sides[index]()
            dist.barrier()
            seconds[index], used[index] = time.perf_counter() - start, processor_seconds() - before
        rows.append((tuple(seconds), tuple(used)))
    return rows


def compare(step_name: str, cluster: Cluster, peer: str, pairs: int) -> dict[str, Any]:
    """Return one row: our plan against one peer on one number of ranks."""
    ranks = cluster.mesh.device_count
    text = plan_text(_STEPS[step_name](), cluster, PRESETS[peer], compiles=True)
    by_rank = run_ranks(worker, ranks, step_name, text, peer, pairs, timeout=3000)
    rows = [seconds for seconds, _ in by_rank[0]]
    used = [[sum(side) for side in zip(*(cpu for _, cpu in turn), strict=True)] for turn in zip(*by_rank, strict=True)]
    ratios = [ours / theirs for ours, theirs, _, _ in rows]
    low, high = interval(ratios)
    return {
        "step": step_name,
        "ranks": ranks,
        "ours": PRESETS[peer],
        "peer": peer,
        "pairs": pairs,
        **{f"{side} ms": 1e3 * statistics.median(row[at] for row in rows) for at, side in enumerate(SIDES)},
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "cpu": statistics.median(row[0] / row[1] for row in used),
        "ours gains": statistics.median(plain / ours for ours, _, plain, _ in rows),
        "peer gains": statistics.median(plain / theirs for _, theirs, _, plain in rows),
    }


def main() -> None:
    """Print the table, and write JSON file and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", nargs="+", choices=sorted(_STEPS), default=["gpt2", "vit", "vgg"])
    parser.add_argument("--peers", nargs="+", choices=sorted(PRESETS), default=sorted(PRESETS))
    parser.add_argument("--cluster", default="local-4", help="name of a shipped cluster, a file, or `measured`")
    options = parsed(parser, pairs=2, ranks=[2], steps=["gpt2"], peers=["ddp"])
    chosen = product(options.ranks, options.steps, options.peers)
    rows: list[dict[str, Any]] = []
    command = f"python benchmarks/compiled.py --pairs {options.pairs}"
    for ranks, step, peer in chosen:
        rows.append(compare(step, cluster_of(ranks, options.cluster), peer, options.pairs))
        # Publish after every row, since compiling takes long and a run may be interrupted.
        publish("compiled", rows, command=command)
        labels = [f"{row['step']}: {row['ours']} / {row['peer']}, {row['ranks']} ranks" for row in rows]
        bounds = [(row["low"], row["high"]) for row in rows]
        plot_intervals("compiled", labels, [row["ratio"] for row in rows], bounds, xlabel="step time, ours / peer")


if __name__ == "__main__":
    main()
