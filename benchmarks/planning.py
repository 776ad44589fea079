"""
Measure how long planning takes, from `nn.Module` to the emitted program, by default of GPT-2 on an 8x8 mesh of H100.

    python benchmarks/planning.py [--repeat N] [STEP ...]

Each run is a separate process. The time covers `compile_step` (capture, import, passes, emission). The table reports
the best and the median of N runs, and separately the start of Python and torch.
"""

from __future__ import annotations

import statistics

from _report import Rows, arguments, in_new_process, parsed, plot_bars, publish

_ONE = """
import json, sys, time
start = time.perf_counter()
from shardwright.api.compile import compile_step
from shardwright.ir.cluster_file import find_cluster
from shardwright.models.registry import training_step
step, cluster = training_step(sys.argv[1]), find_cluster(sys.argv[2])
import shardwright.lowering.capture.capture
started = time.perf_counter()
plan = compile_step(step, cluster, name=sys.argv[1], step_spec=sys.argv[1])
lines = plan.program.count("\\n")
print(json.dumps({**plan.report, "lines": lines, "wall": time.perf_counter() - started, "start": started - start}))
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cluster", default="h100-8x8")
    parser.add_argument("steps", nargs="*", default=["gpt2-small", "gpt2-48"])
    options = parsed(parser, repeat=1, steps=["gpt2-tiny"], cluster="local-4")
    rows = Rows()
    parts: dict[str, list[float]] = {"import": [], "search": [], "other passes": [], "emit": []}
    for step in options.steps:
        runs = [in_new_process(_ONE, step, options.cluster) for _ in range(options.repeat)]
        runs.sort(key=lambda run: run["wall"])
        best, seconds = runs[0], runs[0]["pass_seconds"]
        searches = [run["pass_seconds"]["search-plan"] for run in runs]
        listed = seconds["import"] + seconds["search-plan"] + seconds["emit"]
        row = {"step": step, "total s (best)": best["wall"]}
        row |= {"total s (median)": statistics.median(run["wall"] for run in runs)}
        row |= {"search s (best)": min(searches), "search s (median)": statistics.median(searches)}
        row |= {"import s": seconds["import"], "emit s": seconds["emit"], "lines of the program": best["lines"]}
        row |= {"step s": best["predicted_step_s"], "gap": best["gap"], "start of Python and torch s": best["start"]}
        rows.append(row)
        values = (seconds["import"], seconds["search-plan"], best["wall"] - listed, seconds["emit"])
        for part, value in zip(parts.values(), values, strict=True):
            part.append(value)
    publish("planning", rows)
    plot_bars("planning", options.steps, parts, title="Time to plan", ylabel="best run, s")


if __name__ == "__main__":
    main()
