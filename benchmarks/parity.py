"""
Compare our data-parallel plan with DistributedDataParallel, and our ZeRO-3 plan with FSDP2 (`fully_shard`).

    python benchmarks/parity.py [--ranks 2 4] [--pairs 120] [--steps gpt2|mlp ...] [--cluster NAME|FILE] [--bucket MIB]
    python benchmarks/parity.py --compiled [--ranks 2 4] [--pairs 40] [--steps gpt2 vit vgg]

Our plans are for the shipped cluster `local-4`, for another cluster, or for this machine as `shardwright profile`
measures it (`--cluster measured`), which determines the bucket size unless `--bucket` sets it.

Both sides train the same model on the same batch in the same processes, step by step in random order. The ratio is the
median of the paired ratios ours / theirs, with a 95 % bootstrap interval. The control `A/A` is the peer against a
second copy of itself. `cpu` is the ratio of processor seconds of all threads of all ranks. With `--compiled` both sides
run compiled (DDP as a whole, FSDP2 block by block) and not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

from _report import Rows, arguments, parsed, plot_ratios, publish, ratio
from _sides import Ours, Peer, compared, control_columns, middle_ms

from shardwright.api.calibration.local_cluster import measured_cluster
from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster import Cluster
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.collective_cost import bucket_bytes
from shardwright.ir.collectives import CollectiveKind
from shardwright.ir.mesh import Mesh
from shardwright.ir.submesh import on_mesh
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.models.mlp import mlp_step
from shardwright.models.vgg import VGG13, VGGConfig, vgg_step
from shardwright.models.vit import ViTConfig, vit_step
from shardwright.passes.overlap import OverlapPass
from shardwright.passes.pipeline import Pipeline

_GPT2 = GPT2Config(layers=4, width=256, heads=4, vocabulary=2048, positions=128)
_VIT = ViTConfig(layers=4, width=192, heads=3, image=64, patch=8, classes=100)
_VGG = VGGConfig(VGG13, widths=(16, 32, 64, 64, 64), hidden=256, image=32, classes=10)
STEPS: dict[str, Callable[[], TrainingStep]] = {
    "gpt2": partial(gpt2_step, _GPT2, batch=8, length=128),
    "mlp": partial(mlp_step, (512, 1024, 1024, 1024, 128), batch=256),
    "vit": partial(vit_step, _VIT, batch=16),
    "vgg": partial(vgg_step, _VGG, batch=32),
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


def plan_text(step: str, cluster: Cluster, preset: str, *, compiles: bool = False, bucket: float | None = None) -> str:
    """Return the program of a step, pinned to a preset on a cluster of one axis, with buckets of `bucket` MiB."""
    options = PlanOptions("fixed", preset, compile=compiles)
    if bucket is not None:
        passes = options.passes(cluster)
        sized = (replace(item, bucket_mb=bucket) if isinstance(item, OverlapPass) else item for item in passes)
        options = PlanOptions(pipeline=Pipeline.of(*sized))
    return compile_step(STEPS[step](), cluster, options, name=preset).program


def compare(step: str, cluster: Cluster, peer: str, pairs: int, bucket: float | None) -> dict[str, Any]:
    """Return one row: our plan against one peer on one number of ranks."""
    text = plan_text(step, cluster, PRESETS[peer], bucket=bucket)
    sides = Ours(text), Peer(peer), Peer(peer)
    (ours, theirs, again), used = compared(STEPS[step], cluster.mesh.device_count, sides, pairs)
    row = {"ours ms": middle_ms(ours), "peer ms": middle_ms(theirs), **ratio(ours, theirs)}
    row |= control_columns(again, theirs)
    row |= {"cpu": ratio(used[0], used[1])["ratio"], "A/A cpu": ratio(used[2], used[1])["ratio"]}
    if bucket is None:
        bucket = bucket_bytes(cluster, CollectiveKind.ALL_REDUCE, tuple(cluster.mesh.names)) / 2**20
    return row | {"bucket MiB": bucket}


def compare_compiled(step: str, cluster: Cluster, peer: str, pairs: int) -> dict[str, Any]:
    """Return one row: our compiled plan against one compiled peer on one number of ranks."""
    text = plan_text(step, cluster, PRESETS[peer], compiles=True)
    sides = {
        "ours, compiled": Ours(text, compiles=True),
        "peer, compiled": Peer(peer, compiles=True),
        "ours": Ours(text),
        "peer": Peer(peer),
    }
    seconds, used = compared(STEPS[step], cluster.mesh.device_count, tuple(sides.values()), pairs)
    ours, theirs, ours_plain, theirs_plain = seconds
    row = {f"{name} ms": middle_ms(own) for name, own in zip(sides, seconds, strict=True)} | ratio(ours, theirs)
    row |= {"cpu": ratio(used[0], used[1])["ratio"], "ours gains": ratio(ours_plain, ours)["ratio"]}
    return row | {"peer gains": ratio(theirs_plain, theirs)["ratio"]}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--pairs", type=int, help="number of steps of each side (120, or 40 with --compiled)")
    parser.add_argument("--steps", nargs="+", choices=sorted(STEPS), help="(gpt2, or gpt2 vit vgg with --compiled)")
    parser.add_argument("--peers", nargs="+", choices=sorted(PRESETS), default=sorted(PRESETS))
    parser.add_argument("--cluster", default="local-4", help="name of a shipped cluster, a file, or `measured`")
    parser.add_argument("--bucket", type=float, metavar="MIB", help="bucket size (default: by the cluster)")
    parser.add_argument("--compiled", action="store_true", help="compare both sides compiled by torch")
    options = parsed(parser, pairs=2, ranks=[2], steps=["mlp"], peers=["ddp"])
    steps = options.steps or (["gpt2", "vit", "vgg"] if options.compiled else ["gpt2"])
    name = "compiled" if options.compiled else f"parity-{'-'.join(steps)}"
    rows = Rows()
    for step, peer, ranks in product(steps, options.peers, options.ranks):
        cluster = cluster_of(ranks, options.cluster)
        row = {"step": step, "ranks": ranks, "ours": PRESETS[peer], "peer": peer}
        pairs = options.pairs or (40 if options.compiled else 120)
        run = compare_compiled if options.compiled else partial(compare, bucket=options.bucket)
        rows.append({**row, "pairs": pairs, **run(step, cluster, peer, pairs)})
        # Compiling takes long and a run may be interrupted, so each row is published.
        publish(name, rows)
    label = "{step}: {ours} / {peer}, {ranks} ranks".format_map
    plot_ratios(name, rows, label, title="Steps compared with peers", xlabel="step time, ours / peer")


if __name__ == "__main__":
    main()
