"""
In which order the stages of a pipeline go through their fragments and transfers, part by part.

Stage i (from 1) of n runs its first forwards ahead, then one backward and one forward in turn:

    gpipe             all forwards, then all backwards (Huang et al. 2019)
    1f1b              n - i + 1 forwards ahead (Narayanan et al. 2021)
    eager-1f1b        2 (n - i) + 1, so that what goes to the next stage has time to arrive before it is needed there;
                      gradients of weights come after the next forward, while the gradient goes to the stage before
                      (cross-mesh 4)
    zero-bubble       as 1f1b, but gradients of weights wait for i - 1 further parts: every stage holds n parts, as the
                      first does under 1f1b, and they fill what stages would wait (ZB-H1 of Qi et al. 2023)
    interleaved-1f1b  a stage has several chunks of the model, which n parts at a time go through one after the other
                      (Narayanan et al. 2021)

A transfer starts right after the fragment that makes its value. Who receives it starts it one fragment ahead of the
one that uses it, at the latest, and waits right before that one. Over each pair of stages the receiver starts
transfers in the order in which the sender does: so a schedule is free of deadlock also where a channel hands over its
messages in order. (Starting never waits, and a wait depends on runs that come before the sender's start alone; an
order of all runs in which each has what it needs is that of the fragments part by part.)
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
"""A fixed order, or the best that can be found for the step."""


class FragmentKind(StrEnum):
    """What a fragment computes: forward, the gradients of what forward works on, or those of weights."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHTS = "weights"


@dataclass(frozen=True)
class Work:
    """
    A fragment of a stage, of one of its chunks.

    Args:
        needs: the labels of other fragments of the stage whose values it uses.
    """

    label: str
    stage: int
    kind: FragmentKind
    chunk: int = 0
    needs: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Delivery:
    """A transfer of parts to `stage`: the label of the fragment that makes its value, and of those that use it."""

    label: str
    source: str
    stage: int
    users: tuple[str, ...]


@dataclass(frozen=True)
class WorkRun:
    """The run of a kind of fragment of a chunk, for one part."""

    kind: FragmentKind
    part: int
    chunk: int = 0


@dataclass(frozen=True)
class PipelineShape:
    """How many stages a pipeline has, of how many chunks each, and into how many parts its batch is cut."""

    stages: int
    parts: int
    chunks: int = 1


def policies(shape: PipelineShape) -> tuple[Policy, ...]:
    """The fixed orders that a pipeline can have."""
    if shape.chunks == 1:
        return "1f1b", "zero-bubble", "eager-1f1b", "gpipe"
    return ("gpipe",) if shape.parts % shape.stages else ("interleaved-1f1b", "gpipe")


def warm_up(policy: Policy, stage: int, shape: PipelineShape) -> int:
    """How many forwards a stage, counted from 0, runs before its first backward."""
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
    """What a stage, counted from 0, runs one after the other."""
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
    """The parts of all chunks in the order in which they are begun: as many parts at a time as there are stages."""
    at_a_time = shape.stages if policy == "interleaved-1f1b" else shape.parts
    chunks = range(shape.chunks) if kind is FragmentKind.FORWARD else range(shape.chunks - 1, -1, -1)
    return [
        WorkRun(kind, part, chunk)
        for first in range(0, shape.parts, at_a_time)
        for chunk in chunks
        for part in range(first, min(first + at_a_time, shape.parts))
    ]


def runs_of(works: Sequence[Work], shape: PipelineShape, policy: Policy) -> list[list[Slot]]:
    """By stage, the runs of the fragments that there are, in a fixed order."""
    by_place = {(work.stage, work.kind, work.chunk): work for work in works}
    found: list[list[Slot]] = []
    for stage in range(shape.stages):
        order = order_of_runs(policy, stage, shape)
        listed = ((by_place.get((stage, run.kind, run.chunk)), run.part) for run in order)
        found.append([Slot(Action.RUN, work.label, part) for work, part in listed if work is not None])
    return found


def with_transfers(
    runs: Sequence[Sequence[Slot]],
    deliveries: Sequence[Delivery],
    receive: Mapping[tuple[str, int], int] | None = None,
) -> list[list[Slot]]:
    """
    By stage, its runs with the starts of transfers and waits for them.

    Args:
        receive: by transfer and part, before which run, by its position, the receiver starts it at the latest; by
            default before the one that comes before the first to use it.
    """
    sent = [list(_sent(mine, deliveries)) for mine in runs]
    return [_with_transfers(stage, runs, sent, deliveries, receive or {}) for stage in range(len(runs))]


def _sent(runs: Iterable[Slot], deliveries: Sequence[Delivery]) -> Iterator[Slot]:
    """What a stage starts to send, in order."""
    for run in runs:
        for each in deliveries:
            if each.source == run.label:
                yield Slot(Action.START, each.label, run.part)


def _with_transfers(
    stage: int,
    runs: Sequence[Sequence[Slot]],
    sent: Sequence[Sequence[Slot]],
    deliveries: Sequence[Delivery],
    receive: Mapping[tuple[str, int], int],
) -> list[Slot]:
    mine = runs[stage]
    arriving = {each.label: each for each in deliveries if each.stage == stage}
    before: list[list[Slot]] = [[] for _ in range(len(mine) + 1)]
    used = {
        (label, part): _first_use(mine, each, part)
        for label, each in arriving.items()
        for part in {slot.part for other in sent for slot in other if slot.label == label}
    }
    for other in sent:
        latest = len(mine)
        for slot in reversed([slot for slot in other if slot.label in arriving]):
            key = slot.label, slot.part
            latest = min(latest, max(used[key] - 1, 0), receive.get(key, latest))
            before[latest].insert(0, slot)
    for (label, part), index in used.items():
        before[index].append(Slot(Action.WAIT, label, part))
    found: list[Slot] = []
    for index, slots in enumerate(before):
        found += slots
        if index < len(mine):
            found += [mine[index], *_sent(mine[index : index + 1], deliveries)]
    return found


def _first_use(runs: Sequence[Slot], delivery: Delivery, part: int) -> int:
    """The position of the first run that uses a delivery; the end where none does."""
    uses = (i for i, run in enumerate(runs) if run.part == part and run.label in delivery.users)
    return next(uses, len(runs))


def schedule(
    works: Sequence[Work], deliveries: Sequence[Delivery], shape: PipelineShape, policy: Policy
) -> list[list[Slot]]:
    """By stage, what it does one after the other in a fixed order."""
    return with_transfers(runs_of(works, shape, policy), deliveries)
