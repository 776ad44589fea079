"""Run all ranks of a program on simulated GPUs, and find faults within ranks and between them."""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from shardwright.runtime import Executor, Stage
from shardwright.runtime.stages import connect

from .device import simulated_rank
from .trace import Clock, Queued, Trace

FATAL = ("error", "race", "freed", "order", "deadlock", "alias")
"""Kinds of faults that make a program wrong; `queues` and `sync` make it slow, or wrong only under some settings."""

UNLIMITED = 1 << 30


@dataclass
class Report:
    """
    The faults and counts of a program.

    Args:
        found: faults by kind, each with the number of times it was found.
        kernels: numbers of kernels that a rank launches in a step, by op; `launches` counts NCCL operations.
        copied: bytes written in a step by ops that only move values, by op.
        depends: calls with host arguments that differ between steps, or that read a tensor on the host: a CUDA graph
            would keep the values at its capture.
        moved: inputs whose memory differs in the next step.
    """

    found: Mapping[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter[str]))
    kernels: Counter[str] = field(default_factory=Counter[str])
    copied: Counter[str] = field(default_factory=Counter[str])
    launches: int = 0
    depends: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()

    @property
    def fatal(self) -> list[str]:
        """Return the faults that make a program wrong."""
        return [f"{kind}: {text}" for kind in FATAL for text in self.found.get(kind, ())]


def check_program(stages: Sequence[Stage], steps: int = 2) -> Report:
    """Run some steps of a program on all of its ranks, and compare them."""
    report = Report()
    world = sum(len(each.plan.ranks) for each in stages)
    traces = [_run(stages, rank, world, steps, report) for rank in range(world)]
    _count(traces[0], steps, report)
    if not report.found.get("error"):
        _compare_orders(traces, report)
        if not report.found.get("order"):
            for queues, kind in ((UNLIMITED, "deadlock"), (8, "queues"), (1, "queues")):
                _Job(traces, queues).run(report, kind)
    return report


def count_kernels(stages: Sequence[Stage], steps: int = 2) -> Report:
    """Run some steps on rank 0 alone, and count its launches and copied bytes."""
    report = Report()
    _count(_run(stages, 0, sum(len(each.plan.ranks) for each in stages), steps, report), steps, report)
    return report


def _count(trace: Trace, steps: int, report: Report) -> None:
    report.kernels = Counter({name: round(count / steps) for name, count in trace.kernels.items()})
    report.copied = Counter({name: round(size / steps) for name, size in trace.copied.items()})
    report.launches = trace.launches_of_steps // steps
    report.depends = tuple(_dependent(trace.runs))


def _dependent(runs: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the calls that differ between the last two runs, and the calls with a tensor on the host."""
    if len(runs) < 2:
        return
    before, last = runs[-2:]
    yield from (each for each in last if "cpu:" in each)
    yield from (f"{one} | then | {other}" for one, other in zip(before, last, strict=False) if one != other)
    if len(before) != len(last):
        yield f"{len(before)} ops, then {len(last)}"


def _run(stages: Sequence[Stage], rank: int, world: int, steps: int, report: Report) -> Trace:
    trace = Trace(rank, report.found)
    stages = [Stage(each.plan, _recorded(each.step, trace)) for each in stages]
    with simulated_rank(rank, world, trace):
        device = torch.device("cuda", rank)
        try:
            comm = connect(stages, device)
            executor = Executor(stages, comm)
            executor.fill(lambda value, shape: torch.empty(shape, dtype=value.torch_dtype, device=device))
            inputs = {each.name: each for plan in executor.plans for each in plan.inputs if each.role == "batch"}
            batch = {name: torch.empty(each.shape, dtype=each.torch_dtype) for name, each in inputs.items()}
            launched = len(trace.launches)
            trace.kernels.clear()
            trace.copied.clear()
            for number in range(steps):
                before_step = _homes(executor)
                executor.step(batch, 0.1 / (1 + number))
                moved = (each for each, home in _homes(executor).items() if home != before_step[each])
                report.moved = tuple(moved) if not rank else report.moved
            trace.launches_of_steps = len(trace.launches) - launched
        except Exception as error:
            lines = traceback.extract_tb(error.__traceback__)[-3:]
            at = " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(lines))
            trace.tell("error", f"{type(error).__name__}: {str(error).splitlines()[0]} at {at}")
            return trace
    return trace


def _recorded(step: Callable[..., Any], trace: Trace) -> Callable[..., Any]:
    """Return a program whose ops are recorded."""

    def run(*given: Any) -> Any:
        with trace.recorded():
            return step(*given)

    return run


def _homes(executor: Executor) -> dict[str, int]:
    """Return the memory of each input that lasts from step to step."""
    kept = (each for each in executor.plan.inputs if each.role in ("param", "state", "buffer", "step_count"))
    return {f"{each}": executor.local(each).untyped_storage()._cdata for each in kept}


def _members(communicator: str) -> tuple[int, ...]:
    """Return the ranks of a communicator, which are in its name."""
    return tuple(int(each) for each in communicator.partition("(")[2].rstrip(",)").split(","))


def _compare_orders(traces: Sequence[Trace], report: Report) -> None:
    """Check that all members of each communicator launch the same operations in the same order."""
    launched: dict[str, dict[int, list[tuple[object, ...]]]] = {}
    for trace in traces:
        for each in trace.launches:
            what = each.what[1:] if each.communicator.startswith("pair") else each.what
            launched.setdefault(each.communicator, {}).setdefault(trace.rank, []).append(what)
    for communicator, by_rank in launched.items():
        first = min(by_rank)
        for rank in _members(communicator):
            mine, expected = by_rank.get(rank, []), by_rank[first]
            if mine != expected:
                pairs = enumerate(zip(mine, expected, strict=False))
                at = next((index for index, (one, other) in pairs if one != other), "the end")
                report.found["order"][f"{communicator}: ranks {first} and {rank} differ at {at}"] += 1


class _Job:
    """
    A simulation of the launches: a device has `queues` in-order queues, each shared by some streams, and an entry that
    waits blocks all later entries of its queue. An operation of NCCL ends when all members have started it.
    """

    def __init__(self, traces: Sequence[Trace], queues: int) -> None:
        self.traces, self.queues = traces, queues
        self.done: list[set[int]] = [set() for _ in traces]
        self.started: list[set[int]] = [set() for _ in traces]
        # The (rank, launch) pairs that have started an operation, by communicator and number of the operation on it.
        self.waiting: defaultdict[tuple[str, int], set[tuple[int, int]]] = defaultdict(set)
        self.on_stream: list[dict[str, int]] = [{} for _ in traces]
        self.numbers = [_numbers(trace) for trace in traces]
        self.heads = [self._queues_of(trace) for trace in traces]

    def _queues_of(self, trace: Trace) -> list[list[Queued]]:
        """Return the entries of each queue of a device, the first entry last."""
        place: dict[str, int] = {}
        found: defaultdict[int, list[Queued]] = defaultdict(list)
        for each in trace.queued:
            found[place.setdefault(each.stream, len(place) % self.queues)].append(each)
        return [each[::-1] for each in found.values()]

    def run(self, report: Report, kind: str) -> None:
        """Simulate until no operation can start or end, and report the stuck ones."""
        while self._start() | self._end():
            pass
        stuck = [
            (trace, min(set(range(len(trace.launches))) - done))
            for trace, done in zip(self.traces, self.done, strict=True)
            if len(done) < len(trace.launches)
        ]
        if stuck:
            first = [(trace.rank, trace.launches[index]) for trace, index in stuck[:4]]
            listed = "; ".join(f"rank {rank}: {each.what[0]} on {each.communicator}" for rank, each in first)
            how_many = "any number of" if self.queues == UNLIMITED else self.queues
            report.found[kind][f"with {how_many} hardware queues: {listed}"] += 1

    def _start(self) -> bool:
        moved = False
        for rank, queues in enumerate(self.heads):
            for queue in queues:
                while queue and self._needed(rank, queue[-1]) <= self.done[rank]:
                    each, moved = queue.pop(), True
                    if each.launch is not None:
                        self.started[rank].add(each.launch)
                        self.on_stream[rank][each.stream] = each.launch
                        self.waiting[self.numbers[rank][each.launch]].add((rank, each.launch))
        return moved

    def _needed(self, rank: int, each: Queued) -> set[int]:
        """Return the launches that must end before a stream continues."""
        needed = {last} if (last := self.on_stream[rank].get(each.stream)) is not None else set[int]()
        return needed | _up_to(self.traces[rank], each.until)

    def _end(self) -> bool:
        over = [key for key, present in self.waiting.items() if len(present) == len(_members(key[0]))]
        for key in over:
            for rank, launch in self.waiting.pop(key):
                self.done[rank].add(launch)
        return bool(over)


def _numbers(trace: Trace) -> list[tuple[str, int]]:
    """Return for each launch its communicator and the number of earlier launches on it."""
    counts: Counter[str] = Counter()
    found: list[tuple[str, int]] = []
    for each in trace.launches:
        found.append((each.communicator, counts[each.communicator]))
        counts[each.communicator] += 1
    return found


def _up_to(trace: Trace, until: Clock) -> set[int]:
    """Return the launches of NCCL that are covered by a clock."""
    if not until:
        return set()
    return {i for i, each in enumerate(trace.launches) if until.get(each.stream, 0) >= each.number}
