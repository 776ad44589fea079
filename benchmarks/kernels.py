"""
Count the kernels that a step launches on a GPU, and the bytes that it only copies: our programs, DDP and FSDP2.

    python benchmarks/kernels.py [--step gpt2-small] [--ranks 4] [--cluster h100-8x8] [--ops]

This needs a C++ compiler but no GPU. Rank 0 runs on simulated GPUs (`tests/support/simulated_cuda`), on fake `cuda`
tensors with a replacement for NCCL, and every torch op that writes memory is counted. An op on several tensors counts
once if CUDA processes them together, and once per tensor otherwise; views and allocations do not count. Copied bytes
are bytes written by ops that compute nothing: copies, concatenations, and splits that copy. DDP and FSDP2
(`fully_shard` of every block, then of the model) train the same model with fused AdamW, in `_eager_kernels.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _report import Rows, arguments, parsed, plot_bars, publish
from parity import PRESETS
from simulated_cuda.check import Report, count_kernels
from simulated_cuda.device import build_library

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import Mesh
from shardwright.ir.submesh import on_mesh
from shardwright.lowering.codegen.load_program import load_text
from shardwright.models import training_step
from shardwright.runtime import Stage


def our_counts(step: TrainingStep, preset: str, cluster_name: str, ranks: int) -> Report:
    """Return the counts of a step of our program."""
    cluster = on_mesh(find_cluster(cluster_name), Mesh.of(gpu=ranks))
    plan = compile_step(step, cluster, PlanOptions("fixed", preset), name=preset)
    report = count_kernels([Stage(*stage) for stage in load_text(plan.program, "<program>")])
    if report.fatal:
        raise SystemExit(f"{preset}: {report.fatal[0]}")
    return report


def their_counts(step_name: str, peer: str, ranks: int, library: Path) -> dict[str, Any]:
    """Return the counts of a step of a peer, from a new process, which must load the library before torch."""
    script = Path(__file__).with_name("_eager_kernels.py")
    command = [sys.executable, str(script), str(library), step_name, peer, str(ranks)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def row(name: str, counts: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    kernels, copied, base_kernels, base_copied = (
        sum(counted.values()) for each in (counts, base) for counted in (each["kernels"], each["copied"])
    )
    of_copies = sum(counts["kernels"].get(op, 0) for op in counts["copied"])
    line = {"program": name, "kernels": kernels, "of the peer's": kernels / base_kernels, "that copy": of_copies}
    line |= {"MB copied": copied / 1e6, "share of the peer's": copied / base_copied}
    return line | {"collectives": counts["launches"], "by op": counts["kernels"], "bytes by op": counts["copied"]}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--step", default="gpt2-small")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--cluster", default="h100-8x8")
    parser.add_argument("--ops", action="store_true", help="also print the counts of every op")
    options = parsed(parser, step="gpt2-tiny", ranks=2, cluster="local-4")
    rows = Rows()
    with tempfile.TemporaryDirectory() as folder:
        hooks = Path(__file__).with_name("_cuda_hooks.cpp").read_text()
        library = build_library(hooks, Path(folder))
        for peer, preset in PRESETS.items():
            report = our_counts(training_step(options.step), preset, options.cluster, options.ranks)
            ours = {"kernels": report.kernels, "copied": report.copied, "launches": report.launches}
            theirs = their_counts(options.step, peer, options.ranks, library)
            rows += [row(preset, ours, theirs), row(peer, theirs, theirs)]
    publish(f"kernels-{options.step}", rows)
    if options.ops:
        for each in rows:
            print(each["program"], dict(sorted(each["by op"].items(), key=lambda item: -item[1])))
    labels = [each["program"] for each in rows]
    copying = [float(each["that copy"]) for each in rows]
    other = [float(each["kernels"]) - copies for each, copies in zip(rows, copying, strict=True)]
    series = {"kernels that compute": other, "kernels that copy": copying}
    series["collectives"] = [float(each["collectives"]) for each in rows]
    plot_bars(f"kernels-{options.step}", labels, series, title=f"Kernels of {options.step}", ylabel="launches per step")


if __name__ == "__main__":
    main()
