"""
Measure an emulated cluster, or take the steps of several programs on it. Every rank runs this script.

    python benchmarks/_emulated_ranks.py profile FILE SECONDS
    python benchmarks/_emulated_ranks.py measure|run FOLDER CASE
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _emulated_cases import BETWEEN, CASES, INSIDE, Case
from _in_turns import seconds_by_round
from _paced import Paced

from shardwright.api.training_step import TrainingStep
from shardwright.ir.mesh import Mesh
from shardwright.lowering.capture.calling import batch_items
from shardwright.lowering.codegen.load_program import load_text
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.executor import Executor
from shardwright.runtime.stages import Stage, connect

_PRIORITY = -10
"""The nice value of a rank. A negative value needs root, as the links do."""

_SMALL, _LARGE = 16, 2**20
"""Numbers of elements of the messages that measure latency and bandwidth."""

_PART = 2**16
"""Elements that each rank has in the collectives between hosts."""

_WIDTH = 256
"""The width of the matrices that are multiplied to measure the speed of a rank."""


def profile(path: str, seconds: float) -> None:
    """Profile this rank alone, at the usual speed, and write a cluster file."""
    from shardwright.tools.cli import main

    with Paced():
        main(["profile", "--mesh", "gpu=1", "--seconds", str(seconds), "-o", path])


def measure(case: Case, folder: Path) -> None:
    """Measure the speed of each rank, and the links from rank 0; rank 0 writes the results."""
    rank, hosts = dist.get_rank(), len(case.rates)
    pace = _pace(case)
    with pace:
        seconds = torch.tensor([_matrix_seconds(pace)], dtype=torch.float64)
    flops = [torch.empty(1, dtype=torch.float64) for _ in range(case.ranks)]
    dist.all_gather(flops, 2 * _WIDTH**3 / seconds)
    results: dict[str, Any] = {"flops": [rate.item() for rate in flops], "latency": {}, "bandwidth": 0.0}
    if case.ranks_each > 1:
        results["latency"][INSIDE] = _one_way(1, _SMALL, 100)
        results["bandwidth"] = 4 * _LARGE / _one_way(1, _LARGE, 10)
    if hosts > 1:
        results["latency"][BETWEEN] = latency = _one_way(case.ranks - 1, _SMALL, 100)
        results["efficiency"] = {BETWEEN: _efficiencies(case, latency)}
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(results))


def _pace(case: Case) -> Paced:
    return Paced(case.slower.get(dist.get_rank(), 1.0))


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
    """
    Return the median seconds of a message from rank 0 to another rank, which are half of a round trip.

    Every rank calls this, and gets the same result.
    """
    message, seconds = torch.zeros(size), list[float]()
    for _ in range(times + 3):
        start = time.perf_counter()
        if dist.get_rank() == 0:
            dist.send(message, other)
            dist.recv(message, other)
        elif dist.get_rank() == other:
            dist.recv(message, 0)
            dist.send(message, 0)
        seconds.append((time.perf_counter() - start) / 2)
    dist.barrier()
    # Only two ranks have measured times, so rank 0 sends its median to all.
    middle = torch.tensor([statistics.median(seconds[3:])], dtype=torch.float64)
    dist.broadcast(middle, 0)
    return middle.item()


def _efficiencies(case: Case, latency: float) -> dict[str, float]:
    """Return the share of the slowest host's rate that each kind of collective between hosts reaches."""
    count = len(case.rates)
    comm = Communicator(Mesh.of(node=count, gpu=case.ranks_each), (("node",),))
    part, axes = torch.ones(_PART), ("node",)
    whole = part.repeat(count)
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "all_reduce": (2, lambda: comm.all_reduce(whole, axes)),
        "all_gather": (1, lambda: comm.all_gather(part, 0, axes)),
        "reduce_scatter": (1, lambda: comm.reduce_scatter(whole, 0, axes)),
    }
    slowest = min(rate for rate in case.rates if rate is not None) * 1e6 / 8
    efficiencies: dict[str, float] = {}
    for kind, (rounds, call) in calls.items():
        # All groups of an axis share the link of a host.
        ideal = rounds * 4 * _PART * (count - 1) * case.ranks_each / slowest
        efficiencies[kind] = min(1.0, ideal / max(ideal, _slowest(call, 5) - rounds * (count - 1) * latency))
    return efficiencies


def _slowest(call: Callable[[], object], times: int) -> float:
    """Return the median seconds of a collective until its last rank is done, equal on all ranks."""
    took = torch.zeros(times, dtype=torch.float64)
    for index in range(times):
        dist.barrier()
        start = time.perf_counter()
        call()
        took[index] = time.perf_counter() - start
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.median().item()


def run(case: Case, folder: Path) -> None:
    """Take the steps of all programs of the folder in random order; rank 0 writes the seconds."""
    request = json.loads((folder / "asked.json").read_text())
    step = case.step()
    pace = _pace(case)
    steps = [_step(step, text, name, pace) for name, text in request["programs"]]
    rows = seconds_by_round(steps, request["pairs"], warm=1)
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
    """Run the task that the command line names."""
    torch.set_num_threads(1)
    # A rank sleeps most of the time, and must not wait for a core when it wakes.
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    task, place, more = sys.argv[1:4]
    if task == "profile":
        profile(place, float(more))
        return
    dist.init_process_group("gloo")
    case = next(case for case in CASES if case.name == more)
    (measure if task == "measure" else run)(case, Path(place))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
