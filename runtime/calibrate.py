"""
Measure this machine: what local gloo ranks compute and communicate per second.

Units are SI. All ranks work at once throughout, so that rates are those of ranks that share cores and
memory. A collective of `ir.cluster`'s model takes `alpha + beta * turns * n * (k-1)/k` seconds on k ranks,
where n is the bytes of the whole value (for an all-to-all, of one rank's operand), and turns is 2 for an
all-reduce, else 1. Alpha and beta are fitted to medians at several sizes (AutoDDL 3).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..ir.mesh import Mesh
from .communicator import Communicator
from .spawn import run_ranks

SIZES = (*(4096 * 4**i for i in range(6)), 8 * 1024 * 1024)
"""The bytes at which collectives are measured: 4 KB to 8 MB."""

_AXES = ("ranks",)
_DTYPES = (torch.float32, torch.float64)
_MATMUL = 512
# Far larger than a cache.
_STREAM_ELEMENTS = 8 * 1024 * 1024
_COMPUTE_SHARE = 0.3
_ROUNDS = (3, 200)


@dataclass(frozen=True)
class Fit:
    """Seconds of latency, and seconds per byte."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class _Measured:
    """What one rank saw: rates, and the median seconds of each collective at each size."""

    flops: Mapping[str, float]
    memory_bandwidth: float
    launch: float
    collectives: Mapping[str, list[float]]


def measure(world_size: int, seconds: float = 10.0) -> dict[str, Any]:
    """
    Measure `world_size` local ranks for about `seconds`.

    Returns:
        ``world_size``; ``flops`` (FLOP/s of a matrix product, by dtype name), ``memory_bandwidth`` (bytes/s),
        ``launch`` (seconds to start one op) and ``memory`` (bytes), each of one rank; and ``collectives``:
        by kind, ``alpha`` (seconds) and ``beta`` (seconds per byte).
    """
    by_rank = run_ranks(_measure_rank, world_size, seconds, timeout=60 + 10 * seconds)
    return {
        "world_size": world_size,
        "flops": {name: statistics.median(m.flops[name] for m in by_rank) for name in by_rank[0].flops},
        "memory_bandwidth": statistics.median(m.memory_bandwidth for m in by_rank),
        "launch": statistics.median(m.launch for m in by_rank),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / world_size,
        "collectives": {
            kind: asdict(fit(_points(kind, world_size, (m.collectives[kind] for m in by_rank))))
            for kind in by_rank[0].collectives
        },
    }


def _points(kind: str, world_size: int, medians: Iterable[list[float]]) -> list[tuple[float, float]]:
    """By size, the bytes that the model counts and the seconds of the slowest rank."""
    turns = 2 if kind == "all_reduce" else 1
    slowest = map(max, zip(*medians, strict=True))
    counted = (turns * size * (world_size - 1) / world_size for size in SIZES)
    return list(zip(counted, slowest, strict=True))


def fit(points: Iterable[tuple[float, float]]) -> Fit:
    """
    The line through (bytes, seconds) with the least sum of squared *relative* errors.

    An absolute error would make latency noise of the largest size. Neither number is negative: where the
    best line has one that is, the other alone is fitted.
    """
    rows = [(1 / seconds, count / seconds) for count, seconds in points]
    aa, ab, bb = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(x[i] for x in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    # Relative to its terms: one size alone, or none that differ, leaves the line open.
    if determinant <= 1e-12 * aa * bb:
        return Fit(a / aa, 0.0)
    alpha, beta = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if alpha < 0:
        return Fit(0.0, b / bb)
    return Fit(alpha, beta) if beta >= 0 else Fit(a / aa, 0.0)


def _measure_rank(seconds: float) -> _Measured:
    comm = Communicator(Mesh.of(ranks=dist.get_world_size()), [_AXES])
    compute = _compute_tasks()
    times = _medians([task for task, _ in compute.values()], _COMPUTE_SHARE * seconds)
    rates = {name: work / spent for (name, (_, work)), spent in zip(compute.items(), times, strict=True)}
    collectives = {kind: [partial(run, size) for size in SIZES] for kind, run in _collectives(comm).items()}
    spent = _medians([task for tasks in collectives.values() for task in tasks], (1 - _COMPUTE_SHARE) * seconds)
    count = len(SIZES)
    return _Measured(
        flops={str(dtype).removeprefix("torch."): rates[str(dtype)] for dtype in _DTYPES},
        memory_bandwidth=rates["stream"],
        launch=1 / rates["launch"],
        collectives={kind: spent[i * count : (i + 1) * count] for i, kind in enumerate(collectives)},
    )


def _compute_tasks() -> dict[str, tuple[Callable[[], object], float]]:
    """By name, what to run, and how much work it is: FLOPs, bytes or calls."""
    tasks: dict[str, tuple[Callable[[], object], float]] = {}
    for dtype in _DTYPES:
        x = torch.ones(_MATMUL, _MATMUL, dtype=dtype)
        tasks[str(dtype)] = (partial(torch.mm, x, x), 2.0 * _MATMUL**3)
    source, target = torch.ones(_STREAM_ELEMENTS), torch.ones(_STREAM_ELEMENTS)
    tasks["stream"] = (partial(torch.mul, source, 2.0, out=target), float(source.nbytes + target.nbytes))
    tiny, calls = torch.ones(1), 1000
    tasks["launch"] = (lambda: [torch.add(tiny, tiny) for _ in range(calls)], float(calls))
    return tasks


def _collectives(comm: Communicator) -> dict[str, Callable[[int], object]]:
    """By kind, a function of the bytes that the model counts."""
    size = comm.group(_AXES).size
    # Whole numbers of parts of parts, for an all-to-all splits what is split already.
    full = {count: torch.ones(count // 4 // size**2 * size**2) for count in SIZES}
    part = {count: torch.ones(count // 4 // size) for count in SIZES}
    return {
        "all_reduce": lambda n: comm.all_reduce(full[n], _AXES),
        "all_gather": lambda n: comm.all_gather(part[n], 0, _AXES),
        "reduce_scatter": lambda n: comm.reduce_scatter(full[n], 0, _AXES),
        "all_to_all": lambda n: comm.all_to_all(full[n].view(-1, size), 0, 1, _AXES),
        "broadcast": lambda n: comm.broadcast(full[n], _AXES),
    }


def _medians(tasks: list[Callable[[], object]], seconds: float) -> list[float]:
    """Each task's median time. All are run in turn, so that a slow moment of the machine hits one sample of each."""
    for task in tasks:
        task()
    start = time.perf_counter()
    samples = [[_timed(task)] for task in tasks]
    longest = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    least, most = _ROUNDS
    for _ in range(min(max(int(seconds / longest.item()), least), most) - 1):
        for sample, task in zip(samples, tasks, strict=True):
            sample.append(_timed(task))
    return [statistics.median(sample) for sample in samples]


def _timed(task: Callable[[], object]) -> float:
    dist.barrier()
    start = time.perf_counter()
    task()
    return time.perf_counter() - start
