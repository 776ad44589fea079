"""The times of a pipeline, the last fragments of a part, and the parts that a stage holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...dialects.pipe import Action, Slot
from .schedules import Delivery, FragmentKind, Work

PartOf = tuple[str, int]
"""The label of a fragment or transfer, and the part."""


@dataclass(frozen=True)
class PipelineTimes:
    """
    The fragments and transfers of a pipeline, and their seconds.

    Args:
        runs: by label, the seconds of a fragment for one part.
        transfers: by label, the seconds of a transfer of one part.
    """

    works: tuple[Work, ...]
    deliveries: tuple[Delivery, ...]
    parts: int
    runs: Mapping[str, float]
    transfers: Mapping[str, float]


def last_works(works: Sequence[Work]) -> frozenset[Work]:
    """Return the last fragment that a part runs in each chunk of each stage."""
    kinds = list(FragmentKind)
    in_order = sorted(works, key=lambda work: kinds.index(work.kind))
    return frozenset({(work.stage, work.chunk): work for work in in_order}.values())


def chunks_of(works: Iterable[Work], stage: int) -> int:
    """Return how many chunks of the model a stage has."""
    return len({work.chunk for work in works if work.stage == stage})


def in_flight(slots: Sequence[Slot], works: Sequence[Work]) -> int:
    """Return the largest number of parts in flight, counted in each chunk of a stage."""
    last = {work.label for work in last_works(works)}
    forward = {work.label for work in works if work.kind is FragmentKind.FORWARD}
    most = held = 0
    for slot in (slot for slot in slots if slot.action is Action.RUN):
        held += slot.label in forward
        most = max(most, held)
        held -= slot.label in last
    return most
