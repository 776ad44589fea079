"""
Compare our data-parallel plan with DistributedDataParallel, and our ZeRO-3 plan with FSDP2 (`fully_shard`).

    python benchmarks/parity.py [--ranks 2 4] [--pairs 120] [--step gpt2|mlp] [--cluster NAME|FILE]
        [--bucket MIB]

Our plans are for the shipped cluster `local-4`, for another cluster, or for this machine as `shardwright profile`
measures it (`--cluster measured`, as in `parallelize(cluster="auto")`). The cluster determines the bucket size, unless
`--bucket` sets it; the table shows it.

Both sides train the same model on the same batch in the same processes, step by step in random order, so that noise of
the machine affects both. The ratio is the median of the paired ratios ours / theirs, with a 95 % bootstrap interval.
The control `A/A` is the peer against a second copy of itself. `cpu` is the ratio of processor seconds of all threads of
all ranks, which other jobs on the machine disturb less. Training uses AdamW, float32 and gloo.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from _report import interval, parsed, plot_intervals, publish
from torch import nn

from shardwright.api.calibration.local_cluster import measured_cluster
from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.collective_cost import bucket_bytes
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh
from shardwright.ir.submesh import on_mesh
from shardwright.lowering.codegen.load_program import load_text
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.mlp import mlp_step
from shardwright.passes.overlap import OverlapPass
from shardwright.passes.pipeline import Pipeline
from shardwright.runtime import Executor, Stage, run_ranks
from shardwright.runtime.stages import connect

_SMALL_GPT2 = GPT2Config(layers=4, width=256, heads=4, vocabulary=2048, positions=128)
STEPS: dict[str, Callable[[], TrainingStep]] = {
    "gpt2": lambda: gpt2_step(_SMALL_GPT2, batch=8, length=128),
    "mlp": lambda: mlp_step((512, 1024, 1024, 1024, 128), batch=256),
}
PRESETS = {"ddp": "dp", "fsdp2": "zero3"}


MEASURED = "measured"
"""Name of this machine as a cluster."""

_PROFILE_SECONDS = 20.0


@cache
def cluster_of(ranks: int, name: str) -> Cluster:
    """Return the cluster to plan for on one axis: this machine with `ranks` processes, or a named cluster."""
    if name == MEASURED:
        return measured_cluster(ranks, _PROFILE_SECONDS)
    return on_mesh(find_cluster(name), Mesh.of(gpu=ranks))


def bucket_mib(cluster: Cluster) -> float:
    """Return the bucket size of gradients under data parallelism."""
    return bucket_bytes(cluster, CollectiveKind.ALL_REDUCE, tuple(cluster.mesh.names)) / 2**20


def plan_text(
    step: TrainingStep, cluster: Cluster, preset: str, *, compiles: bool = False, bucket: float | None = None
) -> str:
    """Return the program of `step`, pinned to a preset on a cluster of one axis, with buckets of `bucket` MiB."""
    options = PlanOptions("fixed", preset, compile=compiles)
    if bucket is not None:
        passes = options.passes(cluster)
        sized = (replace(item, bucket_mb=bucket) if isinstance(item, OverlapPass) else item for item in passes)
        options = PlanOptions(pipeline=Pipeline.of(*sized))
    return compile_step(step, cluster, options, name=preset).program


def our_side(step: TrainingStep, text: str, _peer: str) -> Callable[[], None]:
    """Return a function that runs one step of our program."""
    stages = [Stage(*stage) for stage in load_text(text, "program.py")]
    executor = Executor(stages, connect(stages))
    executor.initialize(step.model, 0)
    batch = {str(i): item for i, item in enumerate(step.batch)}

    def run() -> None:
        executor.step(batch)

    return run


def their_side(step: TrainingStep, _text: str, peer: str) -> Callable[[], None]:
    """Return a function that runs one step of the peer on this rank's part of the batch."""
    torch.manual_seed(0)
    model = step.build_model()
    wrapped = _wrapped(model, peer)
    optimizer = step.optimizer(wrapped.parameters())
    rank, world = dist.get_rank(), dist.get_world_size()
    batch = tuple(item.chunk(world)[rank] for item in step.batch if isinstance(item, torch.Tensor))
    local = replace(step, batch=batch)

    def run() -> None:
        optimizer.zero_grad()
        local.compute_loss(wrapped).backward()
        optimizer.step()

    return run


def _wrapped(model: nn.Module, peer: str) -> nn.Module:
    if peer == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in getattr(model, "h", []) or getattr(model, "layers", []):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def processor_seconds() -> float:
    """Return the processor seconds that all threads of this process have used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


Row = tuple[float, float, float]
"""Seconds of a step of ours, of the peer, and of the peer's control."""


def worker(step_name: str, text: str, peer: str, pairs: int) -> list[tuple[Row, Row]]:
    """Return the seconds of each triple of steps: wall time, and processor time of this rank."""
    torch.set_num_threads(1)
    step = STEPS[step_name]()
    sides = [make(step, text, peer) for make in (our_side, their_side, their_side)]
    for _ in range(5):
        for side in sides:
            side()
    rows: list[tuple[Row, Row]] = []
    order = list(range(3))
    generator = random.Random(0)
    for _ in range(pairs):
        generator.shuffle(order)
        seconds, used = [0.0] * 3, [0.0] * 3
        for index in order:
            dist.barrier()
            start, before = time.perf_counter(), processor_seconds()
            sides[index]()
            dist.barrier()
            seconds[index], used[index] = time.perf_counter() - start, processor_seconds() - before
        rows.append(((seconds[0], seconds[1], seconds[2]), (used[0], used[1], used[2])))
    return rows


def compare(step_name: str, cluster: Cluster, peer: str, pairs: int, bucket: float | None = None) -> dict[str, Any]:
    """Return one row: our plan against one peer on one number of ranks."""
    ranks = cluster.mesh.device_count
    text = plan_text(STEPS[step_name](), cluster, PRESETS[peer], bucket=bucket)
    by_rank = run_ranks(worker, ranks, step_name, text, peer, pairs, timeout=3000)
    rows = [seconds for seconds, _ in by_rank[0]]
    used = [[sum(side) for side in zip(*(cpu for _, cpu in turn), strict=True)] for turn in zip(*by_rank, strict=True)]
    ratios, control = [a / b for a, b, _ in rows], [c / b for _, b, c in rows]
    low, high = interval(ratios)
    control_low, control_high = interval(control)
    return {
        "step": step_name,
        "ranks": ranks,
        "ours": PRESETS[peer],
        "peer": peer,
        "pairs": pairs,
        "ours ms": 1e3 * statistics.median(a for a, _, _ in rows),
        "peer ms": 1e3 * statistics.median(b for _, b, _ in rows),
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "A/A": statistics.median(control),
        "A/A low": control_low,
        "A/A high": control_high,
        "cpu": statistics.median(ours / theirs for ours, theirs, _ in used),
        "A/A cpu": statistics.median(again / theirs for _, theirs, again in used),
        "bucket MiB": bucket_mib(cluster) if bucket is None else bucket,
    }


def main() -> None:
    """Print the table, and write JSON file and plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--step", choices=sorted(STEPS), default="gpt2")
    parser.add_argument("--peers", nargs="+", choices=sorted(PRESETS), default=sorted(PRESETS))
    parser.add_argument("--cluster", default="local-4", help="name of a shipped cluster, a file, or `measured`")
    parser.add_argument("--bucket", type=float, metavar="MIB", help="bucket size (default: by the cluster)")
    options = parsed(parser, pairs=2, ranks=[2], step="mlp", peers=["ddp"])
    rows = [
        compare(options.step, cluster_of(ranks, options.cluster), peer, options.pairs, options.bucket)
        for peer in options.peers
        for ranks in options.ranks
    ]
    command = f"python benchmarks/parity.py --step {options.step} --pairs {options.pairs}"
    publish(f"parity-{options.step}", rows, command=command)
    labels = [f"{row['ours']} / {row['peer']}, {row['ranks']} ranks" for row in rows]
    middles = [row["ratio"] for row in rows]
    bounds = [(row["low"], row["high"]) for row in rows]
    plot_intervals(f"parity-{options.step}", labels, middles, bounds, xlabel="step time, ours / peer")


if __name__ == "__main__":
    main()
