"""
Measure an emulated cluster, or take the steps of several programs on it. Every rank runs this script.

    python benchmarks/_emulated_ranks.py profile FILE SECONDS
    python benchmarks/_emulated_ranks.py OPTIONS-OF-`_netns.answers`
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import _netns
import torch
import torch.distributed as dist
from _emulated_cases import BETWEEN, CASES, INSIDE, SLOW_RANK, Case
from _paced import Paced
from _sides import by_round, executor_of, timed, until_all_are_done

from shardwright.ir.mesh import Mesh
from shardwright.lowering.capture.calling import batch_items
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.executor import Executor

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


def measure(case: Case) -> dict[str, Any]:
    """Measure the speed of each rank, and the links from rank 0."""
    pace = _pace(case)
    seconds = torch.tensor([_matrix_seconds(pace)], dtype=torch.float64)
    flops = [torch.empty(1, dtype=torch.float64) for _ in range(case.ranks)]
    dist.all_gather(flops, 2 * _WIDTH**3 / seconds)
    results: dict[str, Any] = {"flops": [rate.item() for rate in flops], "bandwidth": 0.0}
    results |= {"latency": {}, "efficiency": {}}
    if case.ranks_each > 1:
        results["bandwidth"] = 4 * _LARGE / _one_way(1, _LARGE, 10)
        results["latency"][INSIDE] = latency = max(_one_way(1, _SMALL, 100), _hop_seconds(case))
        if len(case.rates) == 1:
            ideal = 4 * _PART * (case.ranks - 1) / results["bandwidth"]
            results["efficiency"][INSIDE] = _efficiencies(case, "gpu", ideal, latency, pace)
    if len(case.rates) > 1:
        results["latency"][BETWEEN] = latency = _one_way(case.ranks - 1, _SMALL, 100)
        slowest = min(rate for rate in case.rates if rate is not None) * 1e6 / 8
        # All groups of an axis share the link of a host.
        ideal = 4 * _PART * (len(case.rates) - 1) * case.ranks_each / slowest
        results["efficiency"][BETWEEN] = _efficiencies(case, "node", ideal, latency, pace)
    return results


def _pace(case: Case) -> Paced:
    return Paced(case.slower.get(dist.get_rank(), 1.0))


def _matrix_seconds(pace: Paced, times: int = 5) -> float:
    matrix = torch.randn(_WIDTH, _WIDTH)
    # The first product in `with` loads modules.
    with pace:
        torch.mm(matrix, matrix)
    start = time.perf_counter()
    with pace:
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


def _hop_seconds(case: Case) -> float:
    """Return the seconds that a hop of a small all-reduce on all ranks takes."""
    small, hops = torch.ones(_SMALL), 2 * (case.ranks - 1)
    return statistics.median(until_all_are_done(lambda: dist.all_reduce(small)) for _ in range(20)) / hops


def _efficiencies(case: Case, axis: str, ideal: float, latency: float, pace: Paced) -> dict[str, float]:
    """
    Return the share of the bandwidth that each kind of collective over an axis reaches.

    The devices add and copy parts at their own speed, as in the steps.

    Args:
        ideal: seconds of an all-gather at full bandwidth.
    """
    count = len(case.rates) if axis == "node" else case.ranks_each
    axes = (axis,)
    comm = Communicator(Mesh.of(node=len(case.rates), gpu=case.ranks_each), (axes,))
    part = torch.ones(_PART)
    whole = part.repeat(count)
    square = whole.view(count, -1)
    # Rounds of messages of one part, and steps that take the latency.
    calls: dict[str, tuple[int, int, Callable[[], object]]] = {
        "all_reduce": (2, 2 * (count - 1), lambda: comm.all_reduce(whole, axes)),
        "all_gather": (1, count - 1, lambda: comm.all_gather(part, 0, axes)),
        "reduce_scatter": (1, count - 1, lambda: comm.reduce_scatter(whole, 0, axes)),
        "all_to_all": (1, 1, lambda: comm.all_to_all(square, 0, 1, axes)),
    }
    efficiencies: dict[str, float] = {}
    for kind, (rounds, steps, call) in calls.items():
        seconds = statistics.median(until_all_are_done(partial(_in_pace, pace, call)) for _ in range(5))
        best = rounds * ideal
        efficiencies[kind] = min(1.0, best / max(best, seconds - steps * latency))
    return efficiencies


def _in_pace(pace: Paced, call: Callable[[], object]) -> None:
    with pace:
        call()
        pace.settle()


def run(case: Case, programs: Sequence[tuple[str, str]], pairs: int) -> list[list[float]]:
    """Take steps of programs, given by name and text, in turn, and return their seconds by round."""
    step, pace = case.step(), _pace(case)
    batch = batch_items(step.batch)
    sides = [partial(_paced_step, executor_of(step, text, name), batch, pace) for name, text in programs]
    rows = by_round([partial(timed, side) for side in sides], pairs, warm=1)
    return [[took.seconds for took in row] for row in rows]


def _paced_step(side: Executor, batch: dict[str, Any], pace: Paced) -> None:
    _in_pace(pace, partial(side.step, batch))


def work(request: Any) -> Any:
    """Measure the case of a request, or run its programs."""
    case = next(case for case in (*CASES, *SLOW_RANK) if case.name == request["case"])
    return run(case, request["programs"], request["pairs"]) if "programs" in request else measure(case)


def main() -> None:
    """Run the task that the command line names."""
    torch.set_num_threads(1)
    # A rank sleeps most of the time, and must not wait for a core when it wakes.
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    if _netns.is_rank():
        _netns.answer(work)
    else:
        profile(sys.argv[2], float(sys.argv[3]))


if __name__ == "__main__":
    main()
