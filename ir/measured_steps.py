"""
What ranks measured of their steps: when each computed, and when what it sent was under way; and the file of that.

A collective is under way from when the last of its group has come to it until this rank has what it gives; a transfer
from when both sides have begun it until the last of those that receive it has it. So the begin of traffic is known once
the ranks' measurements are together, on one clock (`aligned`), and means what it means in a simulated step.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from .overlap import ALL, PHASES, Overlaps, Span, length, merged, overlap_of

TRANSFER = "transfer"

_VERSION = 1
_KIND = "shardwright measured steps"


class MeasuredFileError(ValueError):
    """A file that does not hold measured steps; the message says why."""


@dataclass(frozen=True)
class MeasuredTraffic:
    """
    A collective or a transfer in which a rank took part, in seconds of the clock that all ranks share.

    Args:
        kind: of the collective, or ``transfer``.
        channel: its axes, or its stages.
        key: what all ranks that take part call it, in this step.
        where: the layer at which the program starts it, or the label of a transfer; empty where unknown.
        phase: of the step in which it is started; ``all`` where unknown.
        bytes: of this rank's operands.
        start: when it was started.
        end: when this rank had all of it; None for a rank that only sends it.
    """

    kind: str
    channel: str
    key: str
    where: str
    phase: str
    bytes: int
    start: float
    end: float | None


@dataclass(frozen=True)
class MeasuredRank:
    """
    One rank's step.

    Args:
        rank: of the job.
        stage: of the pipeline; None where there is none.
        start, end: of the step.
        computed: when it did not wait, by phase.
        traffic: in the order in which it was started.
    """

    rank: int
    stage: int | None
    start: float
    end: float
    computed: Mapping[str, tuple[Span, ...]]
    traffic: tuple[MeasuredTraffic, ...]

    @property
    def seconds(self) -> float:
        """From begin to end."""
        return self.end - self.start

    @property
    def compute_seconds(self) -> float:
        """In which it did not wait."""
        return length(merged(span for spans in self.computed.values() for span in spans))

    @property
    def overlaps(self) -> Overlaps:
        """What of its communication is beside computation; of an aligned step."""
        sent = ((each.phase, each.channel, (each.start, each.end or each.start)) for each in self.traffic)
        return overlap_of(self.computed, sent)


def aligned(ranks: Sequence[MeasuredRank]) -> tuple[MeasuredRank, ...]:
    """One step of all ranks: traffic begins when all that take part are there, and transfers end for both sides."""
    last: defaultdict[str, float] = defaultdict(float)
    arrived: defaultdict[str, float] = defaultdict(float)
    for each in (each for rank in ranks for each in rank.traffic):
        last[each.key] = max(last.get(each.key, each.start), each.start)
        if each.end is not None:
            arrived[each.key] = max(arrived.get(each.key, each.end), each.end)

    def together(each: MeasuredTraffic) -> MeasuredTraffic:
        end = arrived[each.key] if each.end is None or each.kind == TRANSFER else each.end
        # A rank that sends may have done so before the others that take part have come to it.
        return replace(each, start=min(last[each.key], end), end=end)

    return tuple(replace(rank, traffic=tuple(map(together, rank.traffic))) for rank in ranks)


@dataclass(frozen=True)
class MeasuredSteps:
    """
    Steps of all ranks of a job.

    Args:
        name: of the model.
        steps: each by rank.
    """

    name: str
    steps: tuple[tuple[MeasuredRank, ...], ...]

    @property
    def middle(self) -> tuple[MeasuredRank, ...]:
        """The step of median length, from the first rank's begin to the last one's end."""
        by_length = sorted(self.steps, key=step_seconds)
        return by_length[len(by_length) // 2]

    def text(self) -> str:
        """The text of a file."""
        made = {"kind": _KIND, "version": _VERSION, **asdict(self)}
        return json.dumps(made) + "\n"

    @staticmethod
    def parse(text: str) -> MeasuredSteps:
        """
        What a file holds.

        Raises:
            MeasuredFileError: it is none of these.
        """
        try:
            found: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MeasuredFileError(f"it is not JSON: {error}") from error
        try:
            if (found["kind"], found["version"]) != (_KIND, _VERSION):
                raise ValueError(f'it has no "kind": "{_KIND}" of version {_VERSION}')
            steps = tuple(tuple(map(_rank, step)) for step in found["steps"])
            made = MeasuredSteps(str(found["name"]), steps)
        except KeyError as error:
            raise MeasuredFileError(f"it has no {error}") from error
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise MeasuredFileError(f"it was changed, or is something else: {error}") from error
        if not steps or not all(steps):
            raise MeasuredFileError("it holds no step")
        return made


def step_seconds(step: Sequence[MeasuredRank]) -> float:
    """From the first rank's begin to the last one's end."""
    return max(rank.end for rank in step) - min(rank.start for rank in step)


def busiest(step: Sequence[MeasuredRank]) -> Mapping[int | None, MeasuredRank]:
    """By stage, the rank that computes longest."""
    found: dict[int | None, MeasuredRank] = {}
    for rank in sorted(step, key=lambda rank: rank.compute_seconds):
        found[rank.stage] = rank
    return dict(sorted(found.items(), key=lambda item: item[0] or 0))


def _rank(given: Mapping[str, Any]) -> MeasuredRank:
    computed = {_phase(phase): tuple(map(_span, spans)) for phase, spans in given["computed"].items()}
    stage = None if given["stage"] is None else int(given["stage"])
    traffic = tuple(map(_traffic, given["traffic"]))
    return MeasuredRank(int(given["rank"]), stage, *_span((given["start"], given["end"])), computed, traffic)


def _traffic(given: Mapping[str, Any]) -> MeasuredTraffic:
    names = {name: str(given[name]) for name in ("kind", "channel", "key", "where")}
    end = given["start"] if given["end"] is None else given["end"]
    start, end = _span((given["start"], end))
    return MeasuredTraffic(**names, phase=_phase(given["phase"]), bytes=int(given["bytes"]), start=start, end=end)


def _phase(given: str) -> str:
    if given not in (*PHASES, ALL):
        raise ValueError(f"{given!r} is none of the phases {', '.join(PHASES)}")
    return given


def _span(given: Iterable[float]) -> Span:
    begin, end = map(float, given)
    if not -inf < begin <= end < inf:
        raise ValueError(f"the time from {begin} to {end}")
    return begin, end
