"""
Measured steps of all ranks: when each rank computed and when its traffic was in flight; and the file of such steps.

A collective is in flight from the time when its last rank has started it until this rank has its result; a transfer,
from the time when both sides have started it until its last receiver has it. The start of traffic is thus known only
once the measurements of all ranks are combined on one clock (`aligned`); it then has the meaning of a simulated step.
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
    """An error about a file that does not hold measured steps; the message gives the reason."""


@dataclass(frozen=True)
class MeasuredTraffic:
    """
    A collective or transfer of a rank, in seconds of the clock that all ranks share.

    Args:
        kind: kind of the collective, or ``transfer``.
        channel: axes of the collective, or stages of the transfer.
        key: name of the collective or transfer in this step, the same on all its ranks.
        where: layer that starts it in the program, or label of the transfer; empty if unknown.
        phase: phase of the step that starts it; ``all`` if unknown.
        bytes: bytes of this rank's operands.
        start: start time.
        end: time when this rank had the result, or None for a rank that only sends.
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
        rank: rank in the job.
        stage: stage of the pipeline, or None without a pipeline.
        start, end: times of the step.
        computed: times of the rank outside of waits, by phase.
        traffic: collectives and transfers in start order.
    """

    rank: int
    stage: int | None
    start: float
    end: float
    computed: Mapping[str, tuple[Span, ...]]
    traffic: tuple[MeasuredTraffic, ...]

    @property
    def seconds(self) -> float:
        """The seconds of the step."""
        return self.end - self.start

    @property
    def compute_seconds(self) -> float:
        """The seconds of the rank outside of waits."""
        return length(merged(span for spans in self.computed.values() for span in spans))

    @property
    def overlaps(self) -> Overlaps:
        """The overlap of the rank's communication with its computation, in an aligned step."""
        # The last transfers may arrive on other ranks when this rank has ended its step.
        sent = (
            (traffic.phase, traffic.channel, (traffic.start, min(traffic.end or traffic.start, self.end)))
            for traffic in self.traffic
        )
        return overlap_of(self.computed, sent)


def aligned(ranks: Sequence[MeasuredRank]) -> tuple[MeasuredRank, ...]:
    """Align a step of all ranks: traffic starts when its last rank joins, and transfers end on both sides at once."""
    last: defaultdict[str, float] = defaultdict(float)
    arrived: defaultdict[str, float] = defaultdict(float)
    for traffic in (traffic for rank in ranks for traffic in rank.traffic):
        last[traffic.key] = max(last.get(traffic.key, traffic.start), traffic.start)
        if traffic.end is not None:
            arrived[traffic.key] = max(arrived.get(traffic.key, traffic.end), traffic.end)

    def together(each: MeasuredTraffic) -> MeasuredTraffic:
        end = arrived[each.key] if each.end is None or each.kind == TRANSFER else each.end
        # A sender may finish before the other ranks have joined.
        return replace(each, start=min(last[each.key], end), end=end)

    return tuple(replace(rank, traffic=tuple(map(together, rank.traffic))) for rank in ranks)


@dataclass(frozen=True)
class MeasuredSteps:
    """
    Steps of all ranks of a job.

    Args:
        name: name of the model.
        steps: for each step, all ranks.
    """

    name: str
    steps: tuple[tuple[MeasuredRank, ...], ...]

    @property
    def middle(self) -> tuple[MeasuredRank, ...]:
        """The step of median length, from the first rank's begin to the last rank's end."""
        by_length = sorted(self.steps, key=step_seconds)
        return by_length[len(by_length) // 2]

    def text(self) -> str:
        """Return the text of a file."""
        return json.dumps({"kind": _KIND, "version": _VERSION, **asdict(self)}) + "\n"

    @staticmethod
    def parse(text: str) -> MeasuredSteps:
        """
        Return the steps in the text of a file.

        Raises:
            MeasuredFileError: the text does not hold measured steps.
        """
        try:
            contents: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MeasuredFileError(f"it is not JSON: {error}") from error
        try:
            if (contents["kind"], contents["version"]) != (_KIND, _VERSION):
                raise ValueError(f'it has no "kind": "{_KIND}" of version {_VERSION}')
            steps = tuple(tuple(map(_rank, step)) for step in contents["steps"])
            parsed = MeasuredSteps(str(contents["name"]), steps)
        except KeyError as error:
            raise MeasuredFileError(f"it has no {error}") from error
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise MeasuredFileError(f"it has an invalid entry: {error}") from error
        if not steps or not all(steps):
            raise MeasuredFileError("it holds no step")
        return parsed


def step_seconds(step: Sequence[MeasuredRank]) -> float:
    """Return the seconds from the first rank's begin to the last rank's end."""
    return max(rank.end for rank in step) - min(rank.start for rank in step)


def busiest(step: Sequence[MeasuredRank]) -> Mapping[int | None, MeasuredRank]:
    """Map each stage to its rank that computes longest."""
    by_stage: dict[int | None, MeasuredRank] = {}
    for rank in sorted(step, key=lambda rank: rank.compute_seconds):
        by_stage[rank.stage] = rank
    return dict(sorted(by_stage.items(), key=lambda item: item[0] or 0))


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
        raise ValueError(f"found the time from {begin} to {end}, expected finite times in order")
    return begin, end
