"""How long the fragments and transfers of a pipeline take by themselves, for one part: the input of schedules."""

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
    The seconds of fragments and of transfers, by their labels; of ranks that differ those of the slowest.

    Raises:
        OpFailure: an op without a signature, or a resharding without a collective.
    """
    known = Stages(simulator.func)
    writers = {each.division.place.stage: each for each in simulator.writers}
    fragments: dict[str, float] = {}
    for op in simulator.func.body.block.ops:
        if isinstance(op, FragmentOp):
            writer = writers[known.of_op(op)]
            body = writer.body(op)
            fragments[op.label.data] = max(_seconds(body, column) for column in range(len(writer.division.classes)))
    crossing = {label: traffic.seconds for writer in simulator.writers for label, traffic in writer.crossing.items()}
    return fragments, crossing


def _seconds(instructions: Iterable[Instruction], column: int) -> float:
    """Those of a class of ranks whose collectives go one after the other along each axis, and disturb nobody."""
    now, free, over = 0.0, defaultdict[tuple[str, ...], float](float), dict[Traffic, float]()
    for each in instructions:
        match each:
            case Span():
                now += each.ends[column][-1]
            case Issue(traffic):
                over[traffic] = free[traffic.axes] = max(now, free[traffic.axes]) + traffic.seconds
            case Await(traffic):
                now = max(now, over[traffic])
            case _:
                pass
    return now
