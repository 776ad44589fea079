"""
Sites where plans are measured: processes of this machine, or of emulated hosts with limited links.

The ranks of emulated hosts run this file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import _netns
from _prediction_ranks import Turn, time_steps
from _prediction_steps import STEPS

from shardwright.runtime import run_ranks

Turns = dict[str, list[Turn]]
"""Turns of several programs, by name."""


class Site(Protocol):
    """A place where ranks run."""

    def profile(self, ranks: int, words: Sequence[str]) -> None:
        """Run `shardwright profile WORDS` on `ranks` ranks."""
        ...

    def measure(self, step: str, ranks: int, program: str, seconds: float) -> list[Turn]:
        """Time a program of a step on `ranks` ranks for about `seconds`."""
        ...


class Local:
    """Processes on this machine."""

    def profile(self, ranks: int, words: Sequence[str]) -> None:
        """Run the command, which starts its ranks itself."""
        command = [sys.executable, *_PROFILE, "--nproc-per-node", str(ranks), *words]
        subprocess.run(command, check=True)

    def measure(self, step: str, ranks: int, program: str, seconds: float) -> list[Turn]:
        """Time the program over the loopback interface."""
        return run_ranks(time_steps, ranks, STEPS[step], program, seconds, timeout=60 + 4 * seconds)[0]


@dataclass(frozen=True)
class Emulated:
    """
    Emulated hosts, each a network namespace that exists during one call.

    Args:
        rates: sending rates of the hosts, for instance `200mbit`.
        ranks_each: number of processes of a host; the links between them are not limited.
    """

    rates: tuple[str, ...]
    ranks_each: int

    def profile(self, ranks: int, words: Sequence[str]) -> None:
        """Run the command on every rank, as under torchrun."""
        assert ranks == len(self.rates) * self.ranks_each
        with _netns.hosts(self.rates, _BURST) as names:
            _netns.launch([name for name in names for _ in range(self.ranks_each)], [*_PROFILE, *words])

    def measure(self, step: str, ranks: int, program: str, seconds: float) -> list[Turn]:
        """Time the program over the limited links."""
        request = {"step": step, "program": program, "seconds": seconds}
        turns = _netns.answers(__file__, self.rates, request, self.ranks_each, burst=_BURST)
        return [Turn(**turn) for turn in turns]


_PROFILE = ("-m", "shardwright.tools.cli", "profile")
_BURST = "16kb"
"""Burst of a link. It is small, since pauses refill it, and programs pause more than profiling does."""


def write_turns(path: Path, turns: Turns) -> None:
    """Write measured turns as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({form: [asdict(turn) for turn in of_form] for form, of_form in turns.items()}))


def read_turns(path: Path) -> Turns:
    """Read the turns that `write_turns` wrote."""
    read = json.loads(path.read_text())
    return {form: [Turn(**turn) for turn in of_form] for form, of_form in read.items()}


def _answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Time a program as one rank of an emulated host."""
    return [asdict(turn) for turn in time_steps(STEPS[request["step"]], request["program"], request["seconds"])]


if __name__ == "__main__":
    _netns.answer(_answer)
