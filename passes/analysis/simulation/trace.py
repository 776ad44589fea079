"""
Write a simulated step as a trace for Perfetto and Chrome (the JSON of the Trace Event Format).

A process is a class of ranks; its threads are the compute stream, its waits and its channels. A slice is an op or
traffic, in microseconds. An arrow leads from the start of traffic to the op that waited for it, and from the sending
stage to the receiving stage. A counter shows the memory in use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeAlias

from xdsl.ir import Operation, SSAValue

from ....dialects.compute import ComputeOp, dtype_of, shape_of
from ....dialects.spmd import StartOp
from ....dialects.step import sharding_of
from ....ir.op_cost import KernelPart
from ....ir.sharding import Sharding
from ....ir.signatures import Signature
from ..compute import op_work
from ..fusion import fused_parts
from .engine import TrafficRun, WaitRun
from .held import HeldBytes
from .names import category, op_name, source_line
from .network import TRANSFER
from .results import COMPUTE, RankClass, Simulation

Event: TypeAlias = dict[str, Any]

_MICROSECONDS, _NANOSECONDS = 1e6, 1e9
_LISTED_RANKS = 8
_WAITING = "waiting"


def trace(simulation: Simulation) -> dict[str, Any]:
    """Return the trace as a JSON object; names of processes and threads come first, then events in order of time."""
    writer = _TraceWriter(simulation)
    names = [event for rank_class in simulation.classes for event in writer.names(rank_class)]
    slices = [event for rank_class in simulation.classes for event in writer.events(rank_class)]
    ordered = sorted(slices, key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    other = {"step_seconds": simulation.seconds, "function": simulation.func.sym_name.data}
    return {"traceEvents": [*names, *ordered], "displayTimeUnit": "ms", "otherData": other}


def class_name(each: RankClass) -> str:
    """Return the name of a class, as `ranks 0-3 (stage 1, h100)`."""
    runs: list[list[int]] = []
    for rank in each.ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    listed = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:_LISTED_RANKS]]
    more = ", ..." if len(runs) > _LISTED_RANKS else ""
    words = "rank" if len(each.ranks) == 1 else "ranks"
    stage = f"stage {each.stage}, " if each.stage is not None else ""
    return f"{words} {', '.join(listed)}{more} ({stage}{each.device.kind})"


class _TraceWriter:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.held = HeldBytes(simulation)
        self.parts = fused_parts(simulation.func)
        self.threads: dict[tuple[int, str], int] = {}
        self.arrows = {run: number for number, run in enumerate(simulation.execution.traffic)}
        self._arguments: dict[Operation, Event] = {}

    def names(self, each: RankClass) -> Iterator[Event]:
        """Yield the names of a class and of its streams."""
        channels = dict.fromkeys(run.channel.name for run in self.simulation.traffic(each.number))
        # The number of a thread is unique among all processes, as in an operating system.
        first = len(self.threads)
        yield self._named(each, first, "process_name", name=class_name(each))
        yield self._named(each, first, "process_sort_index", sort_index=each.number)
        for index, stream in enumerate((COMPUTE, _WAITING, *channels)):
            self.threads[each.number, stream] = first + index
            yield self._named(each, first + index, "thread_name", name=stream)
            yield self._named(each, first + index, "thread_sort_index", sort_index=index)

    def _named(self, each: RankClass, thread: int, what: str, **args: object) -> Event:
        return {"ph": "M", "pid": each.number, "tid": thread, "ts": 0.0, "name": what, "args": args}

    def events(self, each: RankClass) -> Iterator[Event]:
        """Yield the slices, arrows and counters of a class."""
        starts: dict[tuple[Operation, int], float] = {}
        computing = self.threads[each.number, COMPUTE]
        for run in self.simulation.ops(each.number):
            yield self._slice(each, COMPUTE, run.op, category(run.op), run.start, run.end, run.part)
            if isinstance(run.op, StartOp):
                starts[run.op, run.part] = (run.start + run.end) / 2
        for entry in self.simulation.execution.entries[each.number]:
            if isinstance(entry, WaitRun):
                sent = entry.run
                yield self._slice(each, _WAITING, sent.traffic.op, "exposed", entry.start, entry.end, sent.part)
        for run in self.simulation.traffic(each.number):
            yield self._slice(each, run.channel.name, run.traffic.op, run.traffic.kind, run.start, run.end, run.part)
            yield from self._arrow(each, run, starts.get((run.traffic.op, run.part)))
        for held in self.held.over_time(each):
            now: Event = {"ts": held.time * _MICROSECONDS, "args": {"bytes": held.bytes}}
            yield {"ph": "C", "pid": each.number, "tid": computing, "name": "memory", **now}

    def _slice(
        self, each: RankClass, stream: str, op: Operation, cat: str, start: float, end: float, part: int
    ) -> Event:
        if op not in self._arguments:
            self._arguments[op] = dict(_description(op, each, self.parts.get(op)))
        return {
            "ph": "X",
            "pid": each.number,
            "tid": self.threads[each.number, stream],
            **from_to(start, end),
            "name": op_name(op),
            "cat": cat,
            "args": {**self._arguments[op], "part": part},
        }

    def _arrow(self, each: RankClass, run: TrafficRun, started: float | None) -> Iterator[Event]:
        """Yield an arrow from a start to the op after its wait, or from the sender's slice to the receiver's slice."""
        number = each.number
        # Perfetto accepts only integers as ids: each run has one for every class and one for all classes.
        first = (self.arrows[run] + 1) * (len(self.simulation.classes) + 1)
        common: Event = {"cat": run.traffic.kind, "name": run.traffic.kind, "pid": number}
        if run.traffic.kind == TRANSFER:
            sends = number in run.traffic.ends[0].numbers
            thread = self.threads[number, run.channel.name]
            ends = {} if sends else {"bp": "e"}
            at = (run.start + (run.end - run.start) * (0.25 if sends else 0.75)) * _MICROSECONDS
            if number in (run.traffic.ends[0].first, run.traffic.ends[1].first):
                yield {**common, "ph": "s" if sends else "f", "id": first, "tid": thread, "ts": at, **ends}
        elif started is not None and number in run.taken:
            mine: Event = {**common, "id": first + 1 + number, "tid": self.threads[number, COMPUTE]}
            yield {**mine, "ph": "s", "ts": started * _MICROSECONDS}
            yield {**mine, "ph": "f", "ts": run.taken[number] * _MICROSECONDS}


def from_to(start: float, end: float) -> Event:
    """
    Return the begin and the duration of a slice, in microseconds.

    Perfetto truncates both to whole nanoseconds and drops a slice that then begins before the previous one ends. Slices
    therefore begin and end a quarter into a nanosecond, where truncation and rounding agree, and end one earlier.
    """
    first, last = math.floor(start * _NANOSECONDS), math.floor(end * _NANOSECONDS)
    return {"ts": (first + 0.25) / 1e3, "dur": max(last - first - 0.75, 0.0) / 1e3}


def _description(op: Operation, each: RankClass, part: KernelPart | None) -> Iterator[tuple[str, object]]:
    tensors = [value for value in op.operands if hasattr(value.type, "get_shape")]
    yield "operands", [_typed(value) for value in tensors]
    yield "results", [_typed(value) for value in op.results if hasattr(value.type, "get_shape")]
    if isinstance(op, ComputeOp) and op.signature is not None:
        work = op_work(op, op.signature, each.place.cluster.mesh, part=part)
        yield "signature", _text(op.signature)
        yield "flops", work.flops
        yield "bytes", work.bytes
    if line := source_line(op):
        yield "source", line


def _typed(value: SSAValue) -> str:
    shape = "x".join(map(str, shape_of(value)))
    name = f"%{value.name_hint} " if value.name_hint else ""
    return f"{name}{dtype_of(value)}[{shape}] {_text(sharding_of(value))}"


@lru_cache(maxsize=4096)
def _text(spread: Sharding | Signature) -> str:
    return str(spread)
