"""
Check that the shipped models train as on one device, and measure how long they take to plan.

    python benchmarks/zoo.py [NAME ...]                 # every -tiny model on 4 gloo ranks: 4 and 2x2, both precisions
    python benchmarks/zoo.py --strategies 200           # 200 random strategies of four models, interpreted
    python benchmarks/zoo.py --sizes [NAME ...]         # every model at its full size, planned for 8 and for 8x8 H100

Errors are measured as in `api/checking/comparison.py`, over five steps with different batches. The column `replicated`
lists the ops that are replicated because they have no sharding rule.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch
from _report import Rows, arguments, parsed, progress, publish
from random_strategies import RandomStrategies
from split_cluster import split_cluster
from torch._subclasses.fake_tensor import FakeTensorMode

from shardwright.api.checking.cases import CheckCase
from shardwright.api.checking.check import check_on_ranks
from shardwright.api.compile import import_training_step
from shardwright.ir.mesh import parse_mesh
from shardwright.models import MODELS, training_step
from shardwright.passes.analysis.coverage import coverage

TINY = [name for name in MODELS if name.endswith("-tiny")]
LARGE = [name for name in MODELS if not name.endswith("-tiny")]
MESHES = ("4", "2x2")
RANDOM = ("gpt2-tiny", "bert-sgmoe-tiny", "vit-switch-tiny", "vgg19-tiny")

_PLAN = """
import json, sys, time
from shardwright.api.compile import compile_step
from shardwright.ir.submesh import on_mesh
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.mesh import parse_mesh
from shardwright.models import training_step
name, mesh = sys.argv[1:]
cluster, step = on_mesh(find_cluster("h100-8x8"), parse_mesh(mesh)), training_step(name)
start = time.perf_counter()
report = compile_step(step, cluster, name=name).report
print(json.dumps({**report, "wall": time.perf_counter() - start}))
"""


def equality(names: Sequence[str]) -> Rows:
    """Check each model on each mesh in both precisions in one launch, and return a row for each."""
    cases = [
        CheckCase(name, parse_mesh(mesh), dtype=dtype, cluster=split_cluster(parse_mesh(mesh)))
        for name, mesh, dtype in itertools.product(names, MESHES, (torch.float32, torch.float64))
    ]
    results = check_on_ranks(cases, 4, timeout=3600)
    rows = Rows()
    for name, mesh in itertools.product(names, MESHES):
        own = [result for result in results if result.case.step == name and result.case.mesh == parse_mesh(mesh)]
        ops = coverage(import_training_step(training_step(name)))
        row: dict[str, Any] = {"model": name, "mesh": mesh, "ops": ops["tensor_ops"]}
        row["replicated"] = ", ".join(f"{n}x {op}" for op, n in ops["replicated"].items())
        for result in own:
            dtype = str(result.case.dtype).removeprefix("torch.")
            row[dtype] = max((worst.error for worst in result.errors), default=float("inf"))
        row["agrees"] = "yes" if all(result.passed for result in own) else "; ".join(map(str, own))
        rows.append(row)
    return rows


def strategies(count: int) -> Rows:
    """Interpret `count` random strategies, shared among the models of `RANDOM` and two meshes."""
    rows = Rows()
    pairs = list(itertools.product(RANDOM, ("2x2", "x=3")))
    for place, (name, mesh) in enumerate(pairs):
        drawn = RandomStrategies(name, parse_mesh(mesh))
        errors = [drawn.error(seed) for seed in range(place, count, len(pairs))]
        worst = max(errors, key=lambda each: each.error)
        row: dict[str, Any] = {"model": name, "mesh": mesh, "strategies": len(errors), "largest error": worst.error}
        row |= {"of": f"{worst.kind} {worst.name}", "over 1e-10": sum(each.error > 1e-10 for each in errors)}
        rows.append(progress(row))
    return rows


def sizes(names: Sequence[str]) -> Rows:
    """Plan each model at its full size in a separate process, and return a row for each."""
    rows = Rows()
    for name in names:
        with FakeTensorMode():
            parameters = sum(each.numel() for each in training_step(name).build_model().parameters())
        row: dict[str, Any] = {"model": name, "parameters": f"{parameters:,}"}
        for mesh in ("gpu=8", "node=8,gpu=8"):
            out = subprocess.run([sys.executable, "-c", _PLAN, name, mesh], capture_output=True, text=True)
            plan = json.loads(out.stdout.splitlines()[-1]) if out.returncode == 0 else {}
            why = "" if plan else next(iter(re.findall(r"no strategy fits: .*GiB", out.stderr)), out.stderr[-200:])
            row[f"{mesh}: plan s"] = plan.get("wall", why)
            row["import s"] = plan["pass_seconds"]["import"] if plan else row.get("import s", float("nan"))
            row[f"{mesh}: step s"] = plan.get("predicted_step_s", float("nan"))
            row[f"{mesh}: peak GiB"] = max(plan.get("peak_bytes", [float("nan")])) / 2**30
        rows.append(progress(row))
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--strategies", type=int, default=0, metavar="N")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parsed(parser, names=["mlp-tiny"])
    if options.strategies:
        rows = strategies(options.strategies)
        publish("zoo_strategies", rows)
    elif options.sizes:
        publish("zoo_sizes", sizes(options.names or LARGE))
    else:
        publish("zoo", equality(options.names or TINY))


if __name__ == "__main__":
    main()
