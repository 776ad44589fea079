"""The measurements of a profile so far, in a file from which a later run can resume."""

from __future__ import annotations

import json
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
"""The fields of a journal in a file, besides its version."""

_QUIET = 0.1
"""The part of a processor that others may take."""

_LEAST_ROUNDS = 2


class ProfileError(RuntimeError):
    """A profile that cannot be taken, or gone on with; the message says why."""


@dataclass
class Journal:
    """
    Measurements of a job, the same on every rank.

    Args:
        about: what must be the same for them to go together: mesh, backend, devices.
        seconds: by task, and by round, each rank's seconds per call.
        others: by task, and by round, the processors that other processes kept busy meanwhile.
        left_out: by task, why it was not measured.
        interference: by repetition, how many times longer compute and communication took while the other ran.
        delays: by repetition and stretch of computing, its seconds, and those that a collective took longer after it.
        trouble: why the measuring ended early, if it did.
    """

    about: dict[str, Any]
    seconds: dict[str, list[list[float]]] = field(default_factory=dict[str, list[list[float]]])
    others: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    interference: list[list[float]] = field(default_factory=list[list[float]])
    delays: list[list[tuple[float, float]]] = field(default_factory=list[list[tuple[float, float]]])
    trouble: str = ""

    def quiet_rounds(self, task: str) -> list[list[float]]:
        """The rounds of a task in which the ranks had their hosts to themselves; where there are few, the quietest."""
        rounds, others = self.seconds[task], self.others.get(task, [])
        if not others:
            return rounds
        # What was measured last before an early end is not known to be quiet.
        shares = [*others, *[1.0] * len(rounds)][: len(rounds)]
        quiet = sorted(zip(shares, rounds, strict=True), key=lambda pair: pair[0])
        kept = sum(share <= _QUIET for share, _ in quiet)
        return [by_rank for _, by_rank in quiet[: max(kept, min(_LEAST_ROUNDS, len(quiet)))]]

    def save(self, path: Path) -> None:
        """Write it atomically."""
        write_atomically(path, json.dumps({"version": VERSION, **asdict(self)}) + "\n")

    @staticmethod
    def load(path: Path) -> Journal:
        """
        Read what `save` wrote.

        Raises:
            ProfileError: there is no such file, or it is not one of these.
        """
        try:
            found = json.loads(read_text(path))
            if found.pop("version") != VERSION:
                raise ProfileError(f"{path} was written by another release; start over without --resume")
            if fault := fault_of(found, _FIELDS):
                raise ValueError(fault)
            if not all(rounds and all(rounds) for rounds in found["seconds"].values()):
                raise ValueError("seconds has a task without a measurement")
            return Journal(**found)
        except OSError as error:
            hint = "measure without --resume first"
            raise ProfileError(f"cannot resume: {path}: {error.strerror}; {hint}") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ProfileError(
                f"{path} is not the journal of a profile: {error}; start over without --resume"
            ) from error
