"""
The order of the fragments and transfers of each stage of a pipeline, part by part.

Stage i (from 1) of n runs its first forwards ahead, then one backward and one forward in turn:

    gpipe             all forwards, then all backwards (Huang et al. 2019)
    1f1b              n - i + 1 forwards ahead (Narayanan et al. 2021)
    eager-1f1b        2 (n - i) + 1, so that values sent to the next stage can arrive before they are needed there;
                      weight gradients come after the next forward, while the gradient goes to the stage before
                      (cross-mesh 4)
    zero-bubble       as 1f1b, but weight gradients wait for i - 1 further parts: every stage holds n parts, as the
                      first stage does under 1f1b, and they fill bubbles (ZB-H1 of Qi et al. 2023)
    interleaved-1f1b  a stage has several chunks of the model; n parts at a time pass one chunk after the other
                      (Narayanan et al. 2021)

A transfer starts right after the fragment that produces its value. The receiver starts it at the latest one fragment
before the fragment that uses it, and waits right before that fragment. Between each pair of stages, the receiver
starts transfers in the sender's order, so a schedule is free of deadlock even if a channel delivers its messages in
order. (A start never waits, and a wait depends only on runs before the sender's start; running the fragments part by
part is an order of all runs that satisfies every dependence.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from ...dialects.pipe import Action, Slot

Policy: TypeAlias = Literal["gpipe", "1f1b", "eager-1f1b", "zero-bubble", "interleaved-1f1b"]
"""A fixed order."""

ScheduleName: TypeAlias = Literal["gpipe", "1f1b", "eager-1f1b", "zero-bubble", "interleaved-1f1b", "auto"]
"""A fixed order, or `auto` for the best order that can be found for the step."""


class FragmentKind(StrEnum):
    """The values that a fragment computes: forward, gradients of forward's activations, or gradients of weights."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHTS = "weights"


@dataclass(frozen=True)
class Work:
    """
    A fragment of one chunk of a stage.

    Args:
        needs: labels of the other fragments of the stage whose values it uses.
    """

    label: str
    stage: int
    kind: FragmentKind
    chunk: int = 0
    needs: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Delivery:
    """A transfer of parts to `stage`, with the labels of the fragment that produces the value and of its users."""

    label: str
    source: str
    stage: int
    users: tuple[str, ...]


@dataclass(frozen=True)
class WorkRun:
    """A run of a kind of fragment of a chunk for one part."""

    kind: FragmentKind
    part: int
    chunk: int = 0


@dataclass(frozen=True)
class PipelineShape:
    """The number of stages of a pipeline, of micro-batches of its batch, and of chunks of each stage."""

    stages: int
    parts: int
    chunks: int = 1


def policies(shape: PipelineShape) -> tuple[Policy, ...]:
    """Return the fixed orders that a pipeline can have."""
    if shape.chunks == 1:
        return "1f1b", "zero-bubble", "eager-1f1b", "gpipe"
    return ("gpipe",) if shape.parts % shape.stages else ("interleaved-1f1b", "gpipe")


def warm_up(policy: Policy, stage: int, shape: PipelineShape) -> int:
    """Return how many forwards a stage, counted from 0, runs before its first backward."""
    stages, total = shape.stages, shape.parts * shape.chunks
    left = stages - stage
    ahead: dict[Policy, int] = {
        "gpipe": total,
        "1f1b": left,
        "zero-bubble": left,
        "eager-1f1b": 2 * (left - 1) + 1,
        "interleaved-1f1b": left if shape.chunks == 1 else 2 * (left - 1) + (shape.chunks - 1) * stages + 1,
    }
    return min(total, ahead[policy])


def order_of_runs(policy: Policy, stage: int, shape: PipelineShape) -> list[WorkRun]:
    """Return the runs of a stage, counted from 0, in order."""
    forwards, backwards = (_in_rounds(policy, kind, shape) for kind in (FragmentKind.FORWARD, FragmentKind.BACKWARD))
    warm = warm_up(policy, stage, shape)
    delay = stage if policy == "zero-bubble" else 0
    runs, waiting, following = forwards[:warm], list[WorkRun](), iter(forwards[warm:])
    for backward in backwards:
        waiting.append(WorkRun(FragmentKind.WEIGHTS, backward.part, backward.chunk))
        weights = [waiting.pop(0)] if len(waiting) > delay else []
        forward = [run] if (run := next(following, None)) is not None else []
        after = (*forward, *weights) if policy == "eager-1f1b" else (*weights, *forward)
        runs += [backward, *after]
    return [*runs, *waiting]


def _in_rounds(policy: Policy, kind: FragmentKind, shape: PipelineShape) -> list[WorkRun]:
    """Return the runs of all chunks in order; interleaved, as many parts at a time as there are stages."""
    at_a_time = shape.stages if policy == "interleaved-1f1b" else shape.parts
    chunks = range(shape.chunks) if kind is FragmentKind.FORWARD else range(shape.chunks - 1, -1, -1)
    return [
        WorkRun(kind, part, chunk)
        for first in range(0, shape.parts, at_a_time)
        for chunk in chunks
        for part in range(first, min(first + at_a_time, shape.parts))
    ]


def runs_of(works: Sequence[Work], shape: PipelineShape, policy: Policy) -> list[list[Slot]]:
    """Return the runs of the existing fragments for each stage, in a fixed order."""
    by_place = {(work.stage, work.kind, work.chunk): work for work in works}
    slots: list[list[Slot]] = []
    for stage in range(shape.stages):
        order = order_of_runs(policy, stage, shape)
        listed = ((by_place.get((stage, run.kind, run.chunk)), run.part) for run in order)
        slots.append([Slot(Action.RUN, work.label, part) for work, part in listed if work is not None])
    return slots


def with_transfers(
    runs: Sequence[Sequence[Slot]],
    deliveries: Sequence[Delivery],
    receive: Mapping[tuple[str, int], int] | None = None,
) -> list[list[Slot]]:
    """
    Return the runs of each stage with the starts of transfers and the waits for them.

    Args:
        receive: by transfer and part, the position of the run that the receiver starts it before, at the latest; by
            default one run before its first use.
    """
    sent = [list(_sent(own_runs, deliveries)) for own_runs in runs]
    return [_with_transfers(stage, runs, sent, deliveries, receive or {}) for stage in range(len(runs))]


def _sent(runs: Iterable[Slot], deliveries: Sequence[Delivery]) -> Iterator[Slot]:
    for run in runs:
        for delivery in deliveries:
            if delivery.source == run.label:
                yield Slot(Action.START, delivery.label, run.part)


def _with_transfers(
    stage: int,
    runs: Sequence[Sequence[Slot]],
    sent: Sequence[Sequence[Slot]],
    deliveries: Sequence[Delivery],
    receive: Mapping[tuple[str, int], int],
) -> list[Slot]:
    own = runs[stage]
    arriving = {delivery.label: delivery for delivery in deliveries if delivery.stage == stage}
    before: list[list[Slot]] = [[] for _ in range(len(own) + 1)]
    used = {
        (label, part): _first_use(own, delivery, part)
        for label, delivery in arriving.items()
        for part in {slot.part for other in sent for slot in other if slot.label == label}
    }
    for other in sent:
        latest = len(own)
        for slot in reversed([slot for slot in other if slot.label in arriving]):
            key = slot.label, slot.part
            latest = min(latest, max(used[key] - 1, 0), receive.get(key, latest))
            before[latest].insert(0, slot)
    for (label, part), index in used.items():
        before[index].append(Slot(Action.WAIT, label, part))
    slots_of_stage: list[Slot] = []
    for index, slots in enumerate(before):
        slots_of_stage += slots
        if index < len(own):
            slots_of_stage += [own[index], *_sent(own[index : index + 1], deliveries)]
    return slots_of_stage


def _first_use(runs: Sequence[Slot], delivery: Delivery, part: int) -> int:
    """Return the position of the first run that uses a delivery, or the end without a use."""
    uses = (i for i, run in enumerate(runs) if run.part == part and run.label in delivery.users)
    return next(uses, len(runs))


def schedule(
    works: Sequence[Work], deliveries: Sequence[Delivery], shape: PipelineShape, policy: Policy
) -> list[list[Slot]]:
    """Return the slots of each stage in a fixed order."""
    return with_transfers(runs_of(works, shape, policy), deliveries)
