"""
SIGKILL at random moments of training and saving: each restart goes on from a whole checkpoint, and nothing is lost.

    python benchmarks/kills.py [--count 500] [--ranks 2] [--seed 0]

A small model trains on several processes and saves after every step. At a random moment all of its processes are
killed, or one of them, or torchrun alone; it is started again in the same folder. What each start says of its steps is
compared with a run that was not killed: the loss of every step bit for bit, and that it goes on after the last step
whose checkpoint was said to be written, or a later one.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from _report import publish

SCRIPT = '''
import sys
import torch
import shardwright as sw
from shardwright.models.registry import training_step

made = training_step("mlp-tiny")
torch.manual_seed(0)
model, options = made.build_model(), {"cluster": sys.argv[1], "pins": "zero3", "seed": 0}
step = sw.parallelize(model, made.loss, made.optimizer, made.batch, **options)
step.resume(sys.argv[2])
step.rank or print(f"began {step.steps}", flush=True)
while step.steps < int(sys.argv[3]):
    loss = step(made.batch).item()
    if step.rank == 0:
        print(f"step {step.steps} {loss.hex()}", flush=True)
    step.save(sys.argv[2], asynchronous=step.steps % 2 == 0)
    if step.steps % 2:
        step.rank or print(f"saved {step.steps}", flush=True)
step.wait_saved()
'''
LONGEST = 1.0
"""The seconds after the first step within which the job is killed."""


@dataclass(frozen=True)
class Start:
    """What a job said until its end: the step that it went on from, losses by step, and the last step it had saved."""

    began: int
    losses: dict[int, str]
    saved: int


def run(command: list[str], kill: random.Random | None) -> Start:
    """Start a job, and kill it at a random moment after its first step."""
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert job.stdout is not None
    lines: list[str] = []
    for line in job.stdout:
        lines.append(line)
        if kill is not None and line.startswith("step"):
            time.sleep(kill.uniform(0.0, LONGEST))
            _kill(job, kill)
            break
    lines += job.stdout.readlines()
    job.wait()
    printed = "".join(lines)
    saved = [int(step) for step in re.findall(r"^saved (\d+)$", printed, re.MULTILINE)]
    losses = {int(step): loss for step, loss in re.findall(r"^step (\d+) (\S+)$", printed, re.MULTILINE)}
    began = re.search(r"^began (\d+)$", printed, re.MULTILINE)
    return Start(int(began[1]) if began else -1, losses, max(saved, default=0))


def _kill(job: subprocess.Popen[str], drawn: random.Random) -> None:
    """Kill all ranks, or one of them, or torchrun."""
    ranks = psutil.Process(job.pid).children(recursive=True)
    whom = drawn.choice(("all", "one", "torchrun"))
    victims = {"all": [*ranks, psutil.Process(job.pid)], "one": ranks[:1], "torchrun": [psutil.Process(job.pid)]}[whom]
    for victim in victims:
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def faults(start: Start, before: int, expected: dict[int, str]) -> Iterator[str]:
    """What is wrong with a start after one that had saved `before`."""
    if start.began < before:
        yield "a checkpoint was lost"
    if any(expected.get(step) != loss for step, loss in start.losses.items()):
        yield "another loss"
    if not start.losses:
        yield "no step"


def main() -> None:
    """Print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    drawn, counted, expected = random.Random(options.seed), Counter[str](), dict[int, str]()
    with tempfile.TemporaryDirectory(prefix="shardwright-kills-") as made:
        folder = Path(made)
        (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
        cluster = f"local-{options.ranks}" if options.ranks == 4 else _cluster(folder, options.ranks)
        command = [*launch, str(folder / "train.py"), cluster]
        starts: list[Start] = []
        last = 0
        for number in range(options.count):
            start = run([*command, str(folder / "killed"), "1000000"], drawn)
            starts.append(start)
            told = f"began {start.began}, made {len(start.losses)}, saved {start.saved}"
            print(f"kill {number + 1}: {told}", file=sys.stderr, flush=True)
            last = max(last, *start.losses, 0)
        expected = run([*command, str(folder / "whole"), str(last)], None).losses
    before = 0
    for start in starts:
        counted.update(faults(start, before, expected))
        before = max(before, start.saved)
    row = {"kills": options.count, "ranks": options.ranks, "steps": last, "seed": options.seed}
    found = {name: counted[name] for name in ("a checkpoint was lost", "another loss", "no step")}
    publish("kills", [{**row, **found}], command="python benchmarks/kills.py")


def _cluster(folder: Path, ranks: int) -> str:
    """The file of a generic machine of so many processes."""
    from shardwright.api.local_cluster import generic_cluster
    from shardwright.ir.cluster_file import cluster_toml

    path = folder / "cluster.toml"
    path.write_text(cluster_toml(generic_cluster(ranks)), encoding="utf-8")
    return str(path)


if __name__ == "__main__":
    main()
