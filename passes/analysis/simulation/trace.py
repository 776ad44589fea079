"""
A simulated step as a trace that Perfetto and Chrome open (the JSON of the Trace Event Format).

A process is a class of ranks, its threads are the compute stream, what that waits for, and its channels. A slice is an
op or traffic, in microseconds; an arrow leads from where traffic is started to what waited for it, and from the stage
that sends to the one that receives; a counter shows the memory that is held.
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
    """The trace as a JSON object; events are in the order of time, with names of processes and threads first."""
    writer = _TraceWriter(simulation)
    names = [event for each in simulation.classes for event in writer.names(each)]
    slices = [event for each in simulation.classes for event in writer.events(each)]
    ordered = sorted(slices, key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    other = {"step_seconds": simulation.seconds, "function": simulation.func.sym_name.data}
    return {"traceEvents": [*names, *ordered], "displayTimeUnit": "ms", "otherData": other}


def class_name(each: RankClass) -> str:
    """`ranks 0-3 (stage 1, h100)`."""
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
        """The names of a class and of its streams."""
        channels = dict.fromkeys(run.channel.name for run in self.simulation.traffic(each.number))
        # A thread's number is its own among those of all processes, as in a system.
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
        """What a class does."""
        starts: dict[tuple[Operation, int], float] = {}
        computing = self.threads[each.number, COMPUTE]
        for run in self.simulation.ops(each.number):
            yield self._slice(each, COMPUTE, run.op, category(run.op), run.start, run.end, run.part)
            if isinstance(run.op, StartOp):
                starts[run.op, run.part] = (run.start + run.end) / 2
        for entry in self.simulation.execution.entries[each.number]:
            if isinstance(entry, WaitRun):
                what = entry.run
                yield self._slice(each, _WAITING, what.traffic.op, "exposed", entry.start, entry.end, what.part)
        for run in self.simulation.traffic(each.number):
            yield self._slice(each, run.channel.name, run.traffic.op, run.traffic.kind, run.start, run.end, run.part)
            yield from self._arrow(each, run, starts.get((run.traffic.op, run.part)))
        for held in self.held.over_time(each):
            now: Event = {"ts": held.time * _MICROSECONDS, "args": {"bytes": held.bytes}}
            yield {"ph": "C", "pid": each.number, "tid": computing, "name": "memory", **now}

    def _slice(
        self, each: RankClass, stream: str, op: Operation, cat: str, start: float, end: float, part: int
    ) -> Event:
        return {
            "ph": "X",
            "pid": each.number,
            "tid": self.threads[each.number, stream],
            **from_to(start, end),
            "name": op_name(op),
            "cat": cat,
            "args": {**self._described(op, each), "part": part},
        }

    def _arrow(self, each: RankClass, run: TrafficRun, started: float | None) -> Iterator[Event]:
        """From a start to the op after its wait; of a transfer, from the slice of who sends to that of who receives."""
        number = each.number
        # Perfetto takes whole numbers alone: those of a run, one for each class and one for all.
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

    def _described(self, op: Operation, each: RankClass) -> Event:
        """What a click on a slice shows."""
        if op not in self._arguments:
            self._arguments[op] = dict(_description(op, each, self.parts.get(op)))
        return self._arguments[op]


def from_to(start: float, end: float) -> Event:
    """
    Begin and duration of a slice, in microseconds.

    Perfetto takes both to whole nanoseconds and drops a slice that then begins before the one before it ends. So slices
    begin and end a quarter into nanoseconds, where cutting and rounding agree, and end one earlier.
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
