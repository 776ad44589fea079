"""The times of a pipeline, the last fragments of a part, and the parts that a stage holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...dialects.pipe import Action, Slot
from .schedules import Delivery, FragmentKind, Work

PartOf = tuple[str, int]
"""A fragment or transfer by its label, and the part."""


@dataclass(frozen=True)
class PipelineTimes:
    """
    What a pipeline runs, and for how long.

    Args:
        runs: by label, the seconds of a fragment for one part.
        transfers: by label, those of a transfer.
    """

    works: tuple[Work, ...]
    deliveries: tuple[Delivery, ...]
    parts: int
    runs: Mapping[str, float]
    transfers: Mapping[str, float]


def last_works(works: Sequence[Work]) -> frozenset[Work]:
    """Of each chunk of each stage the fragment with which a part is done."""
    kinds = list(FragmentKind)
    in_order = sorted(works, key=lambda work: kinds.index(work.kind))
    return frozenset({(work.stage, work.chunk): work for work in in_order}.values())


def chunks_of(works: Iterable[Work], stage: int) -> int:
    """How many chunks of the model a stage has."""
    return len({work.chunk for work in works if work.stage == stage})


def in_flight(slots: Sequence[Slot], works: Sequence[Work]) -> int:
    """The most parts, of each chunk of a stage, between the begin of forward and the last gradient at any time."""
    last = {work.label for work in last_works(works)}
    forward = {work.label for work in works if work.kind is FragmentKind.FORWARD}
    most = held = 0
    for slot in (slot for slot in slots if slot.action is Action.RUN):
        held += slot.label in forward
        most = max(most, held)
        held -= slot.label in last
    return most
