"""Find the seconds of a pipeline's fragments and transfers by themselves, for one part: the input of schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from ....dialects.pipe import FragmentOp
from ....dialects.staged import Stages
from .network import Traffic
from .programs import Await, Instruction, Issue, Span
from .simulate import Simulator


def seconds_alone(simulator: Simulator) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """
    Return the seconds of fragments and of transfers, by label; if ranks differ, the seconds of the slowest.

    Raises:
        OpFailure: an op lacks a signature, or a resharding lacks a collective.
    """
    stages = Stages(simulator.func)
    writers = {writer.division.place.stage: writer for writer in simulator.writers}
    fragments: dict[str, float] = {}
    for op in simulator.func.body.block.ops:
        if isinstance(op, FragmentOp):
            writer = writers[stages.of_op(op)]
            body = writer.body(op)
            fragments[op.label.data] = max(_seconds(body, column) for column in range(len(writer.division.classes)))
    crossing = {label: traffic.seconds for writer in simulator.writers for label, traffic in writer.crossing.items()}
    return fragments, crossing


def _seconds(instructions: Iterable[Instruction], column: int) -> float:
    """Return the seconds of one class of ranks whose collectives take turns on each axis and cause no interference."""
    now, free, over = 0.0, defaultdict[tuple[str, ...], float](float), dict[Traffic, float]()
    for instruction in instructions:
        match instruction:
            case Span():
                now += instruction.ends[column][-1]
            case Issue(traffic):
                over[traffic] = free[traffic.axes] = max(now, free[traffic.axes]) + traffic.seconds
            case Await(traffic):
                now = max(now, over[traffic])
            case _:
                pass
    return now
