"""
Measure the run time of `opt-tool` on a small IR file in comparison with stock `xdsl-opt`.

    python benchmarks/startup.py [--runs 20]

The commands alternate, so that noise of the machine affects all equally. The ratio is the median of the paired ratios.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _report import arguments, parsed, plot_intervals, publish

STEP = """
func.func @step(%w: tensor<512x512xf32> {train.param = "w"}, %x: tensor<64x512xf32> {train.batch = "0"})
    -> tensor<64x512xf32> {
  %h = aten.mm %x, %w : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
  %y = aten.relu %h : (tensor<64x512xf32>) -> tensor<64x512xf32>
  func.return %y : tensor<64x512xf32>
}
"""
SEARCH = 'add-cluster{file="local-4"},search-strategy,communicate'
BIN = Path(sys.executable).parent


def seconds(command: list[str]) -> float:
    """Return the wall time of one run."""
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Print the table, and write JSON file and plot."""
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=20)
    options = parsed(parser, runs=1)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(STEP)
        file.flush()
        commands = {
            "xdsl-opt -p canonicalize": [str(BIN / "xdsl-opt"), "-p", "canonicalize", file.name],
            "opt-tool, canonicalize": [str(BIN / "opt-tool"), "--pass-pipeline=canonicalize", file.name],
            "opt-tool, search to collectives": [str(BIN / "opt-tool"), f"--pass-pipeline={SEARCH}", file.name],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for command in commands.values():
            seconds(command)  # a first run that fills the caches of the file system
        for _ in range(options.runs):
            for name, command in commands.items():
                times[name].append(seconds(command))
    base = times["xdsl-opt -p canonicalize"]
    rows: list[dict[str, Any]] = []
    for name, measured in times.items():
        ratios = [a / b for a, b in zip(measured, base, strict=True)]
        row = {"command": name, "median s": statistics.median(measured), "min s": min(measured)}
        rows.append({**row, "max s": max(measured), "ratio to xdsl-opt": statistics.median(ratios)})
    publish("startup", rows)
    bounds = [(row["min s"], row["max s"]) for row in rows]
    plot_intervals("startup", list(times), [row["median s"] for row in rows], bounds, xlabel="seconds")


if __name__ == "__main__":
    main()
