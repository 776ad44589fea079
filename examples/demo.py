"""
The complete workflow: measure this machine, plan a byte-level GPT for it, train it on several processes.

    python examples/demo.py [--ranks 4] [--steps 40] [--text FILE]

It prints the plan, the predicted and the measured step time, and the loss curves on several processes and on one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shardwright.api.plan_report import step_text

HERE = Path(__file__).parent
console = Console(width=110)


def profile(ranks: int, path: Path) -> None:
    """Measure `ranks` processes on this machine and write their cluster file."""
    command = [sys.executable, "-m", "shardwright.tools.cli", "profile", "--seconds", "10", "-o", str(path)]
    subprocess.run([*command, "--nproc-per-node", str(ranks)], check=True, stdout=subprocess.DEVNULL)


def train(ranks: int, cluster: Path, log: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train on `ranks` processes and return the measurements of the first one."""
    script = [str(HERE / "train_gpt.py"), "--cluster", str(cluster), "--steps", str(options.steps), "--save", str(log)]
    script += ["--text", options.text] if options.text else []
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launch, *script], check=True, env=environment)
    return json.loads(log.read_text())


def show_plan(report: Any) -> None:
    """Print the plan of the compiler."""
    table = Table(title=f"the plan, on {report['mesh']}", show_header=False)
    peak, seconds = max(report["peak_bytes"]) / 2**20, report["pass_seconds"]
    sent = ", ".join(f"{kind} {size / 2**20:.1f} MiB" for kind, size in report["collective_bytes"].items())
    rows = {
        "planned in": f"{sum(seconds.values()):.1f} s, of which search {seconds['search-plan']:.1f} s",
        "plan": f"{report['chosen']}, of {len(report['candidates'])} candidates",
        "predicted step": step_text(report),
        "peak memory": f"{peak:.0f} MiB per process",
        "sent per step": sent or "nothing",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def show_losses(several: list[float], one: list[float], ranks: int) -> None:
    """Print both loss curves."""
    table = Table(title="loss")
    for column in ("step", f"{ranks} processes", "one process", "", ""):
        table.add_column(column)
    top = max(*several, *one)
    for number in range(0, len(several), max(1, len(several) // 10)):
        bars = ("#" * round(40 * losses[number] / top) for losses in (several, one))
        table.add_row(str(number), f"{several[number]:.4f}", f"{one[number]:.4f}", *bars)
    console.print(table)
    worst = max(abs(a - b) / b for a, b in zip(several, one, strict=True))
    console.print(f"largest relative difference of the two curves: {worst:.1e}")


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--text", help="train on this file instead of Python's own sources")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results: list[dict[str, Any]] = []
        for ranks in (options.ranks, 1):
            cluster = Path(folder, f"local-{ranks}.toml")
            console.rule(f"{ranks} process{'es' if ranks > 1 else ''}: measure, plan, train")
            profile(ranks, cluster)
            results.append(train(ranks, cluster, Path(folder, f"log-{ranks}.json"), options))
        several, one = results
        show_plan(several["plan"])
        console.print(
            f"step: predicted {step_text(several['plan'])}, measured {several['step_s'] * 1e3:.0f} ms"
            f" (one process: {one['step_s'] * 1e3:.0f} ms)"
        )
        show_losses(several["losses"], one["losses"], options.ranks)


if __name__ == "__main__":
    main()
