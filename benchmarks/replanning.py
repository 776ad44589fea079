"""
Measure how long replanning for other devices takes, and how much state it moves: GPT-2 from N to M unequal devices.

    python benchmarks/replanning.py [--step STEP] [--budget SECONDS] [N:M ...]

Every third device is of a kind that is three times slower. The step is imported and planned for N once. Each pair then
replans it for M from the files of that plan, in a new process, which may fork once. Seconds do not include importing
modules. `read` covers reading the undecided step and the old plan's placement of the state, `replan` covers planning up
to program, report and texts, and `write` covers writing them. These are wall times; `cpu s` is their total processor
time. `lost` is state that only removed ranks have, which a checkpoint must provide. `of bound` is the state that
processes need and do not have, over the least such state that any placement of the processes reaches.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _report import Rows, arguments, in_new_process, parsed, publish

CLUSTER = """version = 1
name = "unequal-{count}"
mesh = ["gpu={count}"]
[device.fast]
flops = {{ float32 = "494TFLOP/s", float64 = "67TFLOP/s", bfloat16 = "989TFLOP/s" }}
memory_bandwidth = "3.35TB/s"
memory = "{memory}GB"
launch = "4us"
[device.slow]
flops = {{ float32 = "156TFLOP/s", float64 = "19.5TFLOP/s", bfloat16 = "312TFLOP/s" }}
memory_bandwidth = "2TB/s"
memory = "{memory}GB"
launch = "5us"
{places}
[link.gpu]
latency = "10us"
bandwidth = "45GB/s"
"""

_ONE = """
import json, os, sys, time
from pathlib import Path
import ortools.graph.python.linear_sum_assignment
import ortools.graph.python.max_flow
import ortools.linear_solver.pywraplp
from shardwright.api.files import plan_digest
from shardwright.api.plan_record import RECORD, PlanRecord
from shardwright.api.replan import replan
from shardwright.ir.cluster_file import find_cluster
from shardwright.ir.garbage import collector_paused
from shardwright.tools.ir_input import load_module
folder, cluster = Path(sys.argv[1]), find_cluster(sys.argv[2])
with collector_paused():
    used, times = os.times(), [time.perf_counter()]
    undecided = load_module(str(folder / "global.mlir"))
    old = PlanRecord.read(folder / RECORD, plan_digest(folder))
    times.append(time.perf_counter())
    new = replan(undecided, old, cluster, processes=2)
    times.append(time.perf_counter())
    new.step.save(sys.argv[3])
    times.append(time.perf_counter())
    cpu = sum(os.times()[:4]) - sum(used[:4])
spent = {name: end - begin for name, begin, end in zip(("read", "replan_s", "write"), times, times[1:])}
print(json.dumps({**new.step.report, **spent, "cpu": cpu}))
"""


def cluster_text(count: int, memory: int) -> str:
    """Return a cluster file of unequal devices on one network, each with `memory` GB."""
    places = "".join(f'[[place]]\ndevice = "{"slow" if rank % 3 == 2 else "fast"}"\n' for rank in range(count))
    return CLUSTER.format(count=count, memory=memory, places=places)


def row_of(pair: str, report: dict[str, Any]) -> dict[str, Any]:
    moves = report["replan"]
    brought = moves["moved_bytes"] + moves["lost_bytes"]
    row = {"from:to": pair, "plan": report["chosen"], "read s": report["read"], "replan s": report["replan_s"]}
    row |= {"write s": report["write"], "cpu s": report["cpu"]}
    row |= {f"{name} MB": moves[f"{name}_bytes"] / 1e6 for name in ("state", "moved", "lost")}
    row |= {"of bound": brought / moves["moved_bytes_bound"] if brought else 1.0}
    return row | {"step ms": report["predicted_step_s"] * 1e3}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--step", default="gpt2-small")
    parser.add_argument("--budget", type=float, default=10.0)
    parser.add_argument("--memory", type=int, default=80, help="memory of each device in GB")
    parser.add_argument("pairs", nargs="*", default=["4:3", "8:6", "8:12"])
    options = parsed(parser, step="gpt2-tiny", budget=1.0, pairs=["4:3"])
    rows = Rows()
    with tempfile.TemporaryDirectory() as name:
        for pair in options.pairs:
            before, after = (int(count) for count in pair.split(":"))
            files = [Path(name, f"{count}.toml") for count in (before, after)]
            for path, count in zip(files, (before, after), strict=True):
                path.write_text(cluster_text(count, options.memory))
            plan = Path(name, f"plan{before}")
            if not plan.exists():
                words = ["plan", options.step, "--cluster", files[0], "--budget", options.budget, "--out", plan]
                subprocess.run([sys.executable, "-m", "shardwright", *map(str, words)], capture_output=True, check=True)
            rows.append(row_of(pair, in_new_process(_ONE, plan, files[1], Path(name, "new"))))
    publish("replanning", rows)


if __name__ == "__main__":
    main()
