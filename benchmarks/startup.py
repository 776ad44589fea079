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

from _report import Rows, arguments, parsed, plot, publish, ratio

STEP = """
func.func @step(%w: tensor<512x512xf32> {train.param = "w"}, %x: tensor<64x512xf32> {train.batch = "0"})
    -> tensor<64x512xf32> {
  %h = aten.mm %x, %w : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
  %y = aten.relu %h : (tensor<64x512xf32>) -> tensor<64x512xf32>
  func.return %y : tensor<64x512xf32>
}
"""
SEARCH = 'add-cluster{file="local-4"},search-strategy,communicate'
COMMANDS = {
    "xdsl-opt -p canonicalize": ("xdsl-opt", "--passes=canonicalize"),
    "opt-tool, canonicalize": ("opt-tool", "--pass-pipeline=canonicalize"),
    "opt-tool, search to collectives": ("opt-tool", f"--pass-pipeline={SEARCH}"),
}


def seconds(tool: str, *words: str) -> float:
    """Return the wall time of one run of a tool that is installed with this Python."""
    start = time.perf_counter()
    subprocess.run([str(Path(sys.executable).with_name(tool)), *words], capture_output=True, check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=20)
    options = parsed(parser, runs=1)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(STEP)
        file.flush()
        # The first round fills the caches of the file system.
        rounds = [[seconds(*words, file.name) for words in COMMANDS.values()] for _ in range(1 + options.runs)][1:]
    times = dict(zip(COMMANDS, zip(*rounds, strict=True), strict=True))
    base = next(iter(times.values()))
    rows = Rows()
    for name, own in times.items():
        row = {"command": name, "median s": statistics.median(own), "min s": min(own), "max s": max(own)}
        rows.append({**row, "ratio to xdsl-opt": ratio(own, base)["ratio"]})
    publish("startup", rows)
    with plot("startup", height=0.6 * len(rows) + 1.8, title="Start-up of the commands") as axes:
        for place, row in enumerate(rows):
            axes.plot([row["min s"], row["median s"], row["max s"]], [place] * 3, "o-")
        axes.set_yticks(range(len(rows)), list(COMMANDS))
        axes.set_xlabel("time, s: least, median, most")


if __name__ == "__main__":
    main()
