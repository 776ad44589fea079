"""
What each rank of an emulated cluster does: it measures the cluster, or takes the steps of several programs.

    python benchmarks/_emulated_ranks.py profile FILE | measure FOLDER | run FOLDER     (as rank and world of torchrun)
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _emulated_cases import BETWEEN, CASES, INSIDE, PACE, Case
from _in_turns import seconds_by_round
from _paced import Paced

from shardwright.api.training_step import TrainingStep
from shardwright.lowering.capture.calling import batch_items
from shardwright.lowering.codegen.load_program import load_text
from shardwright.runtime.executor import Executor
from shardwright.runtime.stages import Stage, connect

_SMALL, _LARGE = 16, 2**20
"""Elements of messages for the latency, and for the bandwidth."""

_WIDTH = 256
"""Of the product of matrices that shows how slow a rank is."""


def profile(path: str, seconds: float) -> None:
    """Measure this rank alone, at the usual pace, as a cluster file."""
    from shardwright.tools.cli import main

    with Paced(PACE):
        main(["profile", "--mesh", "gpu=1", "--seconds", str(seconds), "-o", path])


def measure(case: Case, folder: Path) -> None:
    """Measure how fast each rank is, and the latency of links."""
    rank, hosts = dist.get_rank(), len(case.rates)
    pace = Paced(case.paces[rank])
    with pace:
        took = torch.tensor([_matrix_seconds(pace)], dtype=torch.float64)
    flops = [torch.empty(1, dtype=torch.float64) for _ in range(case.ranks)]
    dist.all_gather(flops, 2 * _WIDTH**3 / took)
    found: dict[str, Any] = {"flops": [each.item() for each in flops], "latency": {}, "bandwidth": 0.0}
    if case.ranks_each > 1:
        found["latency"][INSIDE] = _one_way(1, _SMALL, 100)
        found["bandwidth"] = 4 * _LARGE / _one_way(1, _LARGE, 10)
    if hosts > 1:
        found["latency"][BETWEEN] = _one_way(case.ranks - 1, _SMALL, 100)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


def _matrix_seconds(pace: Paced, times: int = 5) -> float:
    matrix = torch.randn(_WIDTH, _WIDTH)
    torch.mm(matrix, matrix)
    pace.settle()
    start = time.perf_counter()
    for _ in range(times):
        torch.mm(matrix, matrix)
    pace.settle()
    return (time.perf_counter() - start) / times


def _one_way(other: int, size: int, times: int) -> float:
    """Seconds of a message from rank 0 to another: half of there and back, in the middle of some; the same on all."""
    message, took = torch.zeros(size), list[float]()
    for _ in range(times + 3):
        start = time.perf_counter()
        if dist.get_rank() == 0:
            dist.send(message, other)
            dist.recv(message, other)
        elif dist.get_rank() == other:
            dist.recv(message, 0)
            dist.send(message, 0)
        took.append((time.perf_counter() - start) / 2)
    dist.barrier()
    return statistics.median(took[3:])


def run(case: Case, folder: Path) -> None:
    """Take the steps of all programs of the folder in turns; rank 0 writes the seconds."""
    asked = json.loads((folder / "asked.json").read_text())
    step = case.step()
    pace = Paced(case.paces[dist.get_rank()])
    steps = [_step(step, text, name, pace) for name, text in asked["programs"]]
    rows = seconds_by_round(steps, asked["pairs"], warm=1)
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(rows))


def _step(step: TrainingStep, text: str, name: str, pace: Paced) -> Callable[[], object]:
    stages = [Stage(*each) for each in load_text(text, name)]
    side = Executor(stages, connect(stages, torch.device("cpu")))
    side.initialize(step.model, 0)
    batch = batch_items(step.batch)

    def paced() -> None:
        with pace:
            side.step(batch)
            pace.settle()

    return paced


def main() -> None:
    """Do what the command line says."""
    torch.set_num_threads(1)
    what, place, more = sys.argv[1:4]
    if what == "profile":
        profile(place, float(more))
        return
    dist.init_process_group("gloo")
    case = next(each for each in CASES if each.name == more)
    (measure if what == "measure" else run)(case, Path(place))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
