"""The measurements of a profile so far, in a file that a later run can resume from."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...ir.json_shape import COUNT, NUMBER, Shape, fault_of
from ...ir.text_file import read_text, write_atomically

VERSION = 1

_ROUNDS: Shape = [[NUMBER]]
_FIELDS: Shape = {
    "about": {"mesh": [[(str, COUNT)]], "backend": str, "devices": [[(str, COUNT, type(None))]], "*": object},
    "seconds": {"*": _ROUNDS},
    "others": {"*": [NUMBER]},
    "left_out": {"*": str},
    "interference": _ROUNDS,
    "delays": [_ROUNDS],
    "trouble": str,
}
"""The fields of a journal in a file, without its version."""

_QUIET = 0.1
"""The fraction of a processor that other processes may use in a quiet round."""

_LEAST_ROUNDS = 2


class ProfileError(RuntimeError):
    """A profile that cannot be measured or resumed; the message gives the reason."""


def middle_seconds(rounds: Sequence[Sequence[float]], ranks: Iterable[int] | None = None) -> float:
    """Return the seconds of a task in the median round: of the slowest rank, or of the mean of `ranks`."""
    if ranks is None:
        return statistics.median(max(by_rank) for by_rank in rounds)
    chosen = list(ranks)
    return statistics.median(statistics.fmean(by_rank[rank] for rank in chosen) for by_rank in rounds)


@dataclass
class Journal:
    """
    Measurements of a job, the same on every rank.

    Args:
        about: mesh, backend and devices, which must be the same for all measurements in a journal.
        seconds: by task, and by round, each rank's seconds per call.
        others: by task, and by round, the processors that other processes kept busy meanwhile.
        left_out: by task, the reason why it was not measured.
        interference: by repetition, how many times longer compute and communication took while the other ran.
        delays: by repetition and stretch of computing, its seconds, and the extra seconds of a collective after it.
        trouble: the reason why the measurement ended early, if it did.
    """

    about: dict[str, Any]
    seconds: dict[str, list[list[float]]] = field(default_factory=dict[str, list[list[float]]])
    others: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    interference: list[list[float]] = field(default_factory=list[list[float]])
    delays: list[list[tuple[float, float]]] = field(default_factory=list[list[tuple[float, float]]])
    trouble: str = ""

    def quiet_rounds(self, task: str) -> list[list[float]]:
        """Return the rounds of a task without much load by other processes; the quietest rounds if there are few."""
        rounds, others = self.seconds[task], self.others.get(task, [])
        if not others:
            return rounds
        # The load during the last rounds before an early end is unknown, and counts as high.
        shares = [*others, *[1.0] * len(rounds)][: len(rounds)]
        quiet = sorted(zip(shares, rounds, strict=True), key=lambda pair: pair[0])
        quiet_count = sum(share <= _QUIET for share, _ in quiet)
        return [by_rank for _, by_rank in quiet[: max(quiet_count, min(_LEAST_ROUNDS, len(quiet)))]]

    def save(self, path: Path) -> None:
        """Write the journal atomically."""
        write_atomically(path, json.dumps({"version": VERSION, **asdict(self)}) + "\n")

    @staticmethod
    def load(path: Path) -> Journal:
        """
        Read a journal that `save` wrote.

        Raises:
            ProfileError: the file is missing, or is not a journal.
        """
        try:
            fields = json.loads(read_text(path))
            if fields.pop("version") != VERSION:
                raise ProfileError(f"{path} was written by another release; start over without --resume")
            if fault := fault_of(fields, _FIELDS):
                raise ValueError(fault)
            if not all(rounds and all(rounds) for rounds in fields["seconds"].values()):
                raise ValueError("seconds has a task without a measurement")
            return Journal(**fields)
        except OSError as error:
            hint = "measure without --resume first"
            raise ProfileError(f"cannot resume: {path}: {error.strerror}; {hint}") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ProfileError(
                f"{path} is not the journal of a profile: {error}; start over without --resume"
            ) from error
