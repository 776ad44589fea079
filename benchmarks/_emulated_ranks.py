"""
Measure an emulated cluster, or take the steps of several programs on it. Every rank runs this script.

    python benchmarks/_emulated_ranks.py profile FILE SECONDS
    python benchmarks/_emulated_ranks.py OPTIONS-OF-`_netns.answers`

A rank emulates a device that is slower than a core (`Paced`).
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import _netns
import torch
import torch.distributed as dist
from _emulated_cases import BETWEEN, CASES, INSIDE, SLOW_RANK, Case
from _sides import by_round, executor_of, timed, until_all_are_done
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from shardwright.ir.mesh import Mesh
from shardwright.lowering.capture.calling import batch_items
from shardwright.runtime.communicator import Communicator

FLOPS, BANDWIDTH = 2e9, 1.2e9
"""FLOP/s of products and attention on the emulated device, and bytes/s of all ops."""

LAUNCH = 2.5e-4
"""Fixed seconds of an op. A core launches an op faster, even with cold caches after a sleep, so the sum holds."""

_LEAST_SLEEP = 1e-3
"""Shortest sleep in seconds. Shorter sleeps are not precise, so they are added up first."""

_HOST_ONLY = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::_unsafe_view",
}
"""Ops besides views that a device does not take part in: they only allocate memory or make a view."""

_PRIORITY = -10
"""The nice value of a rank. A negative value needs root, as the links do."""

_SMALL, _LARGE = 16, 2**20
"""Numbers of elements of the messages that measure latency and bandwidth."""

_PART = 2**16
"""Elements that each rank has in the collectives between hosts."""

_WIDTH = 256
"""The width of the matrices that are multiplied to measure the speed of a rank."""


class Paced(TorchDispatchMode):
    """
    Slow down the ops of this thread to the speed of an emulated device.

    An op takes `slower * (LAUNCH + max(flops / FLOPS, bytes / BANDWIDTH))` seconds. A core needs a small part of that
    time, and the rank sleeps for the rest. Thus many ranks share a core and do not slow one another. Collectives begin
    after the sleep for the ops before them. The time that the core needs for Python, views and allocations between ops
    counts as time of the ops, since a program of the emulated device has it within `LAUNCH`.
    """

    def __init__(self, slower: float = 1.0) -> None:
        super().__init__()
        self.slower = slower
        self._owed = 0.0
        self._paid = 0.0
        """The processor seconds of this thread that count as paid."""

    def __enter__(self) -> Self:
        """Begin to slow down the ops, with nothing owed."""
        self._owed, self._paid = 0.0, time.thread_time()
        super().__enter__()
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an op, and sleep if the accumulated debt is large enough."""
        kwargs = kwargs or {}
        if func.namespace == "c10d":
            self.settle()
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if not func.is_view and func.name().partition(".")[0] not in _HOST_ONLY:
            count = flop_registry.get(func.overloadpacket)
            flops = count(*args, **kwargs, out_val=result) if count is not None else 0
            leaves = pytree.tree_leaves((args, tuple(kwargs.values()), result))
            moved = sum(each.numel() * each.element_size() for each in leaves if isinstance(each, torch.Tensor))
            self._owed += self.slower * (LAUNCH + max(flops / FLOPS, moved / BANDWIDTH))
        if self._owed >= _LEAST_SLEEP:
            self.settle()
        return result

    def settle(self) -> None:
        """Sleep for the accumulated debt. Excess sleep counts for the next ops."""
        paid = time.thread_time()
        self._owed -= paid - self._paid
        self._paid = paid
        if self._owed > 0.0:
            start = time.perf_counter()
            time.sleep(self._owed)
            self._owed -= time.perf_counter() - start

    def run(self, call: Callable[[], object]) -> None:
        """Call a function at the speed of the device."""
        with self:
            call()
            self.settle()


def profile(path: str, seconds: float) -> None:
    """Profile this rank alone, at the usual speed, and write a cluster file."""
    from shardwright.tools.cli import main

    with Paced():
        main(["profile", "--mesh", "gpu=1", "--seconds", str(seconds), "-o", path])


def measure(case: Case, pace: Paced) -> dict[str, Any]:
    """Measure the speed of each rank, and the links from rank 0."""
    seconds = torch.tensor([_matrix_seconds(pace)], dtype=torch.float64)
    flops = [torch.empty(1, dtype=torch.float64) for _ in range(case.ranks)]
    dist.all_gather(flops, 2 * _WIDTH**3 / seconds)
    results: dict[str, Any] = {"flops": [rate.item() for rate in flops], "bandwidth": 0.0}
    results |= {"latency": {}, "efficiency": {}}
    if case.ranks_each > 1:
        results["bandwidth"] = 4 * _LARGE / _one_way(1, _LARGE, 10)
        # A hop of a small all-reduce on all ranks may take longer than a message.
        small, hops = torch.ones(_SMALL), 2 * (case.ranks - 1)
        reduced = statistics.median(until_all_are_done(lambda: dist.all_reduce(small)) for _ in range(20))
        results["latency"][INSIDE] = latency = max(_one_way(1, _SMALL, 100), reduced / hops)
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


def _matrix_seconds(pace: Paced, times: int = 5) -> float:
    matrix = torch.randn(_WIDTH, _WIDTH)
    # The first product in `with` loads modules.
    with pace:
        torch.mm(matrix, matrix)
    start = time.perf_counter()
    pace.run(lambda: [torch.mm(matrix, matrix) for _ in range(times)])
    return (time.perf_counter() - start) / times


def _one_way(other: int, size: int, times: int) -> float:
    """Return the median seconds of a message between rank 0 and another rank, equal on all ranks."""
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


def _efficiencies(case: Case, axis: str, ideal: float, latency: float, pace: Paced) -> dict[str, float]:
    """
    Return the share of the bandwidth that each kind of collective over an axis reaches, at the devices' own speed.

    An all-gather takes `ideal` seconds at full bandwidth.
    """
    count, axes = len(case.rates) if axis == "node" else case.ranks_each, (axis,)
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
        seconds = statistics.median(until_all_are_done(partial(pace.run, call)) for _ in range(5))
        best = rounds * ideal
        efficiencies[kind] = min(1.0, best / max(best, seconds - steps * latency))
    return efficiencies


def work(request: Any) -> Any:
    """Measure the case of a request, or take steps of its programs in turn, and return their seconds by round."""
    # A rank sleeps most of the time, and must not wait for a core when it wakes.
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    case = next(case for case in (*CASES, *SLOW_RANK) if case.name == request["case"])
    pace = Paced(case.slower.get(dist.get_rank(), 1.0))
    if "programs" not in request:
        return measure(case, pace)
    step = case.step()
    batch = batch_items(step.batch)
    executors = [executor_of(step, text, name) for name, text in request["programs"]]
    sides = [partial(timed, partial(pace.run, partial(side.step, batch))) for side in executors]
    return [[took.seconds for took in row] for row in by_round(sides, request["pairs"], warm=1)]


def main() -> None:
    torch.set_num_threads(1)
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    profile(sys.argv[2], float(sys.argv[3]))


if __name__ == "__main__":
    _netns.start(work, main)
