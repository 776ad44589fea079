"""
Sites where plans are measured: processes of this machine, or of emulated hosts with limited links.

    sudo python benchmarks/_prediction_sites.py FOLDER        (the command of each rank of an emulated host)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

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

    @contextmanager
    def _hosts(self, ranks: int) -> Generator[list[str], None, None]:
        """Create the hosts and yield the name of each rank's host."""
        assert ranks == len(self.rates) * self.ranks_each
        with _netns.hosts(self.rates, _BURST) as names:
            yield [name for name in names for _ in range(self.ranks_each)]

    def profile(self, ranks: int, words: Sequence[str]) -> None:
        """Run the command on every rank, as under torchrun."""
        with self._hosts(ranks) as names:
            _netns.launch(names, [*_PROFILE, *words])

    def measure(self, step: str, ranks: int, program: str, seconds: float) -> list[Turn]:
        """Time the program over the limited links."""
        with tempfile.TemporaryDirectory() as path, self._hosts(ranks) as names:
            folder = Path(path)
            asked = {"step": step, "program": program, "seconds": seconds}
            (folder / _ASKED).write_text(json.dumps(asked))
            _netns.launch(names, [os.fspath(Path(__file__).resolve()), path])
            return read_turns(folder / _FOUND)[step]


_PROFILE = ("-m", "shardwright.tools.cli", "profile")
_BURST = "16kb"
"""Burst of a link. It is small, since pauses refill it, and programs pause more than profiling does."""

_ASKED, _FOUND = "asked.json", "found.json"


def write_turns(path: Path, turns: Turns) -> None:
    """Write measured turns as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({form: [asdict(turn) for turn in of_form] for form, of_form in turns.items()}))


def read_turns(path: Path) -> Turns:
    """Read the turns that `write_turns` wrote."""
    read = json.loads(path.read_text())
    return {form: [Turn(**turn) for turn in of_form] for form, of_form in read.items()}


def _rank(folder: Path) -> None:
    """Run one rank of an emulated host."""
    import torch.distributed as dist

    from shardwright.runtime.launch import process_group

    asked = json.loads((folder / _ASKED).read_text())
    with process_group("prediction"):
        turns = time_steps(STEPS[asked["step"]], asked["program"], asked["seconds"])
        if dist.get_rank() == 0:
            write_turns(folder / _FOUND, {asked["step"]: turns})


if __name__ == "__main__":
    _rank(Path(sys.argv[1]))
