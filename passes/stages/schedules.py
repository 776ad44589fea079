"""
In which order the stages of a pipeline go through their fragments and transfers, part by part (cross-mesh 4).

Stage i (from 1) of n runs its first forwards ahead, then one backward and one forward in turn:

    gpipe        all forwards, then all backwards
    1f1b         n - i + 1 forwards ahead
    eager-1f1b   2 (n - i) + 1, so that what goes to the next stage has time to arrive before it is needed there;
                 gradients of weights come after the next forward, while the gradient goes to the stage before

A transfer starts right after the fragment that makes its value. Who receives it starts it one fragment ahead of the
one that uses it, at the latest, and waits right before that one. Over each pair of stages the receiver starts
transfers in the order in which the sender does: so a schedule is free of deadlock also where a channel hands over its
messages in order. (Starting never waits, and a wait depends on runs that come before the sender's start alone; an
order of all runs in which each has what it needs is that of the fragments part by part.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from ...dialects.pipe import Action, Slot

Policy: TypeAlias = Literal["gpipe", "1f1b", "eager-1f1b"]


class FragmentKind(StrEnum):
    """What a fragment computes: forward, the gradients of what forward works on, or those of weights."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHTS = "weights"


@dataclass(frozen=True)
class Work:
    """A fragment of a stage."""

    label: str
    stage: int
    kind: FragmentKind


@dataclass(frozen=True)
class Delivery:
    """A transfer of parts to `stage`: the label of the fragment that makes its value, and of those that use it."""

    label: str
    source: str
    stage: int
    users: tuple[str, ...]


def warm_up(policy: Policy, stage: int, stages: int, parts: int) -> int:
    """How many forwards a stage, counted from 0, runs before its first backward."""
    ahead = {"gpipe": parts, "1f1b": stages - stage, "eager-1f1b": 2 * (stages - stage - 1) + 1}
    return min(parts, ahead[policy])


def order_of_runs(policy: Policy, stage: int, stages: int, parts: int) -> list[tuple[FragmentKind, int]]:
    """The kinds of fragments that a stage, counted from 0, runs one after the other, each with its part."""
    warm = warm_up(policy, stage, stages, parts)
    runs = [(FragmentKind.FORWARD, part) for part in range(warm)]
    for part in range(parts):
        forward = [(FragmentKind.FORWARD, warm + part)] if warm + part < parts else []
        weights = [(FragmentKind.WEIGHTS, part)]
        after = (*forward, *weights) if policy == "eager-1f1b" else (*weights, *forward)
        runs += [(FragmentKind.BACKWARD, part), *after]
    return runs


def schedule(
    works: Sequence[Work], deliveries: Sequence[Delivery], stages: int, parts: int, policy: Policy
) -> list[list[Slot]]:
    """By stage, what it does one after the other: runs of its fragments, starts of transfers and waits for them."""
    by_place = {(work.stage, work.kind): work for work in works}
    runs: list[list[Slot]] = []
    for stage in range(stages):
        order = order_of_runs(policy, stage, stages, parts)
        found = ((by_place.get((stage, kind)), part) for kind, part in order)
        runs.append([Slot(Action.RUN, work.label, part) for work, part in found if work is not None])
    sent = [list(_sent(mine, deliveries)) for mine in runs]
    return [_with_transfers(stage, runs, sent, deliveries) for stage in range(stages)]


def _sent(runs: Iterable[Slot], deliveries: Sequence[Delivery]) -> Iterator[Slot]:
    """What a stage starts to send, in order."""
    for run in runs:
        for each in deliveries:
            if each.source == run.label:
                yield Slot(Action.START, each.label, run.part)


def _with_transfers(
    stage: int, runs: Sequence[Sequence[Slot]], sent: Sequence[Sequence[Slot]], deliveries: Sequence[Delivery]
) -> list[Slot]:
    """The runs of a stage with its starts and waits between them."""
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
            latest = min(latest, max(used[slot.label, slot.part] - 1, 0))
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
