"""
Where plans are measured: processes of this machine, or of emulated hosts with limited links.

    sudo python benchmarks/_prediction_sites.py FOLDER        (what each rank of an emulated host runs)
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
"""The turns of programs, by name."""


class Site(Protocol):
    """A place where ranks run."""

    def profile(self, ranks: int, words: Sequence[str]) -> None:
        """Run `shardwright profile WORDS` on `ranks` ranks."""
        ...

    def measure(self, step: str, ranks: int, program: str, seconds: float) -> list[Turn]:
        """Time a program of a step on `ranks` ranks for about `seconds`."""
        ...


class Local:
    """Processes of this machine."""

    def profile(self, ranks: int, words: Sequence[str]) -> None:
        """Let the command start them."""
        command = [sys.executable, *_PROFILE, "--nproc-per-node", str(ranks), *words]
        subprocess.run(command, check=True)

    def measure(self, step: str, ranks: int, program: str, seconds: float) -> list[Turn]:
        """Over loopback."""
        return run_ranks(time_steps, ranks, STEPS[step], program, seconds, timeout=60 + 4 * seconds)[0]


@dataclass(frozen=True)
class Emulated:
    """
    Hosts that are network namespaces, until `hosts` is left.

    Args:
        rates: what each host may send, as `200mbit`.
        ranks_each: how many processes a host has; they talk to one another without limit.
    """

    rates: tuple[str, ...]
    ranks_each: int

    @contextmanager
    def _hosts(self, ranks: int) -> Generator[list[str], None, None]:
        """Of each rank, the name of its host."""
        assert ranks == len(self.rates) * self.ranks_each
        with _netns.hosts(self.rates, _BURST) as names:
            yield [name for name in names for _ in range(self.ranks_each)]

    def profile(self, ranks: int, words: Sequence[str]) -> None:
        """Every rank runs the command, as under torchrun."""
        with self._hosts(ranks) as names:
            _netns.launch(names, [*_PROFILE, *words])

    def measure(self, step: str, ranks: int, program: str, seconds: float) -> list[Turn]:
        """Over the limited links."""
        with tempfile.TemporaryDirectory() as made, self._hosts(ranks) as names:
            folder = Path(made)
            asked = {"step": step, "program": program, "seconds": seconds}
            (folder / _ASKED).write_text(json.dumps(asked))
            _netns.launch(names, [os.fspath(Path(__file__).resolve()), made])
            return read_turns(folder / _FOUND)[step]


_PROFILE = ("-m", "shardwright.tools.cli", "profile")
_BURST = "16kb"
"""Small: a link has no bucket, of which a pause would give back what programs pause more for than measurements do."""

_ASKED, _FOUND = "asked.json", "found.json"


def write_turns(path: Path, turns: Turns) -> None:
    """Keep what was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({form: [asdict(turn) for turn in each] for form, each in turns.items()}))


def read_turns(path: Path) -> Turns:
    """What `write_turns` wrote."""
    read = json.loads(path.read_text())
    return {form: [Turn(**turn) for turn in each] for form, each in read.items()}


def _rank(folder: Path) -> None:
    """One rank of an emulated host."""
    import torch.distributed as dist

    from shardwright.runtime.launch import process_group

    asked = json.loads((folder / _ASKED).read_text())
    with process_group("prediction"):
        turns = time_steps(STEPS[asked["step"]], asked["program"], asked["seconds"])
        if dist.get_rank() == 0:
            write_turns(folder / _FOUND, {asked["step"]: turns})


if __name__ == "__main__":
    _rank(Path(sys.argv[1]))
