"""
The complete workflow: measure this machine, plan a byte-level GPT for it, and train it on several processes.

    python examples/demo.py [--ranks 4] [--steps 20] [--text FILE] [--picture FILE]

The best plans, data parallelism among them, are timed in turns, and the model is trained by the fastest. It is trained
once more by plain PyTorch in one process. The demo prints the plan, the predicted and the measured step, the speed-ups
and both losses, and saves a picture.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from shardwright.api.plan_report import PlanReport, step_text
from shardwright.ir.units import bytes_text, seconds_text

HERE = Path(__file__).parent
console = Console(width=110, highlight=False)


DP = re.compile(r"dp( on \d+)?")
"""The name of the plan that splits the batch over all ranks, and nothing else."""


class Timed(NamedTuple):
    """The predicted and the measured seconds of a plan's step."""

    predicted: float
    measured: float


@dataclass(frozen=True)
class Parts:
    """Seconds of a step and of its computation; the rest waits for communication."""

    step: float
    compute: float

    @property
    def waiting(self) -> float:
        """The seconds that the rank with the longest computation waits for communication."""
        return self.step - self.compute


def measure(ranks: int, path: Path) -> None:
    """Measure `ranks` processes on this machine and write their cluster file; the command shows a bar."""
    command = [sys.executable, "-m", "shardwright.tools.cli", "profile", "--seconds", "10", "-o", str(path)]
    subprocess.run([*command, "--nproc-per-node", str(ranks)], check=True, stdout=subprocess.DEVNULL)


def train(name: str, ranks: int, words: Sequence[str], log: Path, bars: Progress) -> dict[str, Any]:
    """
    Train in new processes and return the measurements of the first one; exit with their output if they fail.

    Args:
        name: name of the bar.
        ranks: number of processes; 1 starts plain PyTorch.
        words: options of train_gpt.py.
        log: file for the measurements.
    """
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    script = [str(HERE / "train_gpt.py"), *words, "--every", "1", "--verbose", "--save", str(log)]
    script += ["--plain"] if ranks == 1 else []
    task = bars.add_task(name, total=None, at="starts")
    process = subprocess.Popen(
        [sys.executable, *launch, *script],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with process:
        assert process.stdout is not None
        others = [line for line in process.stdout if not shown(line, bars, task)]
    if others:
        console.print("".join(others), markup=False, soft_wrap=True)
    if process.returncode:
        sys.exit(f"'{name}' failed with exit code {process.returncode}")
    return json.loads(log.read_text())


def shown(line: str, bars: Progress, task: TaskID) -> bool:
    """Show a line of train_gpt.py as the progress of a bar; return whether it is progress."""
    if step := re.match(r"step +(\d+) of (\d+) +loss (\S+)", line):
        bars.update(task, total=int(step[2]), completed=int(step[1]), at=f"loss {step[3]}")
    elif tried := re.match(r"DEBUG shardwright\.plan: (\d+) candidates", line):
        bars.update(task, at=f"plans: {tried[1]} tried")
    return line.startswith(("step ", "DEBUG ", "INFO "))


def show_plan(report: PlanReport) -> None:
    """Print the plan of the compiler."""
    mesh = ", ".join(f"{axis}={size}" for axis, size in report["mesh"].items())
    table = Table(title=f"the plan for the mesh {mesh}", show_header=False)
    seconds = report["pass_seconds"]
    sent = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in report["collective_bytes"].items())
    rows = {
        "planned in": f"{sum(seconds.values()):.1f} s, of which the search took {seconds['search-plan']:.1f} s",
        "plan": f"{report['chosen']}, the best of {len(report['candidates'])} candidates",
        **{f"  {term}": meaning for term, meaning in report.get("legend", {}).items() if term in str(report["chosen"])},
        "predicted step": step_text(report),
        "peak memory": f"{bytes_text(max(report['peak_bytes']))} per process",
        "sent per step": sent or "nothing",
    }
    for row in rows.items():
        table.add_row(*row)
    console.print(table)


def timed_plans(report: PlanReport, seconds: float) -> dict[str, Timed]:
    """Return the plans that were timed in turns, by name; the chosen plan with `seconds` if no plan was."""
    measured = report.get("measured", ())
    found = {str(each["plan"]): Timed(each["predicted_step_s"], each["measured_step_s"]) for each in measured}
    return found or {str(report["chosen"]): Timed(report["predicted_step_s"], seconds)}


def show_speed(plans: Mapping[str, Timed], chosen: str, one: float) -> None:
    """Print the steps of the timed plans and of plain PyTorch, and the speed-ups over dp and over one process."""
    table = Table("plan", "predicted", "measured", "over dp", "over one process", title="speed")
    base = next((plan for name, plan in plans.items() if DP.fullmatch(name)), None)
    for name, plan in sorted(plans.items(), key=lambda item: item[1].measured):
        over = f"{base.measured / plan.measured:.2f}x" if base is not None else "-"
        label = f"[bold]{name}, chosen[/]" if name == chosen else name
        table.add_row(
            label, seconds_text(plan.predicted), seconds_text(plan.measured), over, f"{one / plan.measured:.2f}x"
        )
    table.add_row("plain PyTorch, one process of one thread", "-", seconds_text(one), "-", "1.00x")
    console.print(table)


def show_prediction(report: PlanReport, measured: Parts, ranks: int) -> None:
    """Print the predicted and the measured step with their parts, and the reason for the difference."""
    predicted = Parts(report["predicted_step_s"], report["predicted_compute_s"])
    table = Table("", "step", "computing", "waiting for communication", title="predicted and measured")
    for name, parts in (("predicted", predicted), ("measured", measured)):
        table.add_row(name, *map(seconds_text, (parts.step, parts.compute, parts.waiting)))
    console.print(table)
    low, high = report["predicted_range_s"] or (predicted.step, predicted.step)
    cores = len(os.sched_getaffinity(0))
    console.print(reason(predicted, measured, (low, high), f"{ranks} processes share {cores} cores"))


def reason(predicted: Parts, measured: Parts, expected: tuple[float, float], shared: str) -> str:
    """Return a sentence on the difference between both steps, and a sentence on its main cause."""
    share = measured.step / predicted.step - 1.0
    place = "within" if expected[0] <= measured.step <= expected[1] else "outside"
    length = f"{abs(share):.0%} {'longer' if share > 0 else 'shorter'} than predicted"
    computed, waited = measured.compute - predicted.compute, measured.waiting - predicted.waiting
    is_longer = share > 0
    # The cause is the part that changed most in the direction of the whole step.
    is_compute = (computed > waited) == is_longer
    causes = {
        (True, True): "computing took longer than in the measurement of this machine, as if other programs ran",
        (True, False): "computing took less time than in the measurement of this machine",
        (False, True): f"the processes waited longer for one another ({shared})",
        (False, False): f"the processes waited less for one another ({shared})",
    }
    part = abs(computed if is_compute else waited)
    cause = f"{causes[is_compute, is_longer]}: {seconds_text(part)}"
    return f"The measured step is {length}, {place} the predicted range. Main cause: {cause}."


def show_losses(several: list[float], one: list[float], ranks: int) -> None:
    """Print both loss curves, bars for the first, and their largest relative difference."""
    table = Table("step", f"{ranks} processes", "one process", "", title="loss")
    top = max(several)
    for number in range(0, len(several), max(1, len(several) // 10)):
        bar = "█" * round(40 * several[number] / top)
        table.add_row(str(number + 1), f"{several[number]:.4f}", f"{one[number]:.4f}", bar)
    console.print(table)
    worst = max(abs(a - b) / b for a, b in zip(several, one, strict=True))
    console.print(f"largest relative difference of the two curves: {worst:.1e}")


def save_picture(path: Path, plans: Mapping[str, Timed], one: float, losses: Mapping[str, list[float]]) -> None:
    """Plot the steps of the plans and of one process, and the losses; print the path, or how to get matplotlib."""
    try:
        import matplotlib
    except ImportError:
        console.print("no picture: matplotlib is missing; pip install 'shardwright[plot]'", markup=False)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 3.6))
    ordered = sorted(plans.items(), key=lambda item: item[1].measured)
    names = [textwrap.fill(name, 28) for name, _ in ordered]
    steps = [*(plan.measured * 1e3 for _, plan in ordered), one * 1e3]
    left.bar_label(left.barh([*names, "plain PyTorch,\none process"], steps, color="tab:blue"), fmt="%.0f", padding=9)
    predicted = [plan.predicted * 1e3 for _, plan in ordered]
    left.plot(predicted, range(len(predicted)), "|", color="black", markersize=20, label="predicted")
    left.set(title="One training step of a small GPT", xlabel="measured, ms")
    left.margins(x=0.15)
    left.invert_yaxis()
    left.legend(loc="upper left", bbox_to_anchor=(-0.35, -0.06), frameon=False)
    for style, (name, curve) in zip(("-", "--"), losses.items(), strict=True):
        right.plot(range(1, len(curve) + 1), curve, style, label=name)
    right.set(title="Loss", xlabel="step", ylabel="cross-entropy, nats per byte")
    right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    console.print(f"picture: {path.resolve()}", soft_wrap=True)


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="number of processes (4)")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="training steps (20)")
    parser.add_argument("--text", metavar="FILE", help="train on this file instead of Python's own sources")
    parser.add_argument("--picture", type=Path, default=Path("shardwright-demo.png"), metavar="FILE")
    options = parser.parse_args()
    if options.ranks < 2 or options.steps < 8:
        parser.error(f"--ranks {options.ranks} --steps {options.steps}: at least 2 ranks and 8 steps are needed")
    return options


def main() -> None:
    """Run the demo."""
    options = parsed()
    several, single = f"{options.ranks} processes", "one process"
    words = ["--steps", str(options.steps), *(("--text", options.text) if options.text else ())]
    with tempfile.TemporaryDirectory() as folder:
        console.rule(f"measure {several} of this machine")
        cluster = Path(folder, f"local-{options.ranks}.toml")
        measure(options.ranks, cluster)
        console.rule(f"plan and train on {several}, then train by plain PyTorch")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[at]}"))
        with Progress(*columns, TimeElapsedColumn(), console=console) as bars:
            planned = [*words, "--cluster", str(cluster), "--measure", "3"]
            ours = train(several, options.ranks, planned, Path(folder, "several.json"), bars)
            plain = train(single, 1, words, Path(folder, "one.json"), bars)
    report: PlanReport = ours["plan"]
    seconds, one = ours["step_s"], plain["step_s"]
    plans = timed_plans(report, seconds)
    show_plan(report)
    show_prediction(report, Parts(seconds, seconds * ours["computed"]), options.ranks)
    show_speed(plans, str(report["chosen"]), one)
    show_losses(ours["losses"], plain["losses"], options.ranks)
    save_picture(options.picture, plans, one, {several: ours["losses"], single: plain["losses"]})


if __name__ == "__main__":
    main()
