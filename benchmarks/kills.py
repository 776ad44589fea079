"""
SIGKILL at random moments of training and saving: each restart resumes from a complete checkpoint, and nothing is lost.

    python benchmarks/kills.py [--count 500] [--ranks 2 3 4] [--torchrun 0.1] [--seed 0]

Short runs of 40 steps save after every step. All processes of a job are killed, or one rank, or what started the
ranks; at a random moment of its start, before a random operation on the files of its checkpoints, or at a random
moment after its first step. Then it is started again in the same folder, till the run is at its end and the next one
begins. The first half of the kills is of jobs on the first number of `--ranks`, in the second each start takes any of
these numbers. One start in ten is torchrun's; the others are forked from a server that has all imported, with
torchrun's environment.

What each start says is compared with a run on as many ranks that was not killed and saved nothing: the loss of every
step, bit for bit as long as a run has had one number of ranks, else to 1e-5 of its size. After each kill the folder
is looked at by code of this file's own: every checkpoint in it has to be whole, and the next start has to go on from
the newest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from _killed_jobs import Job, by_torchrun, forked
from _killed_training import OPERATIONS, STEPS, Aim
from _report import parsed, publish

from shardwright.api.calibration.local_cluster import generic_cluster
from shardwright.ir.cluster_file import cluster_toml

KEPT = 2
"""So many checkpoints `save` keeps."""

TOLERANCE = 1e-5
"""Of a loss, relative, where ranks changed."""

LONGEST, LONGEST_TO_FILE = 0.6, 3.0
"""The seconds after the first step within which a job is killed, and before which it has to come to the operation."""

GONE = {False: 10.0, True: 30.0}
"""The seconds within which no process of a killed job is left: twice `FaultBounds().gone`, by torchrun imports too."""

PATIENCE = 120.0
"""The seconds within which a start says the next thing."""

START_UP, ANY_TIME, AMID_SAVE = "in start-up", "between saves", "amid a save"
"""Where jobs are killed, besides before operations on files."""

MOMENTS = {"start-up": 2, "file": 4, "time": 4}
"""How often a job is killed when, one beside the other."""

COUNTS = ("kills", "all processes", "one rank", "launcher", "starts", "started by torchrun", "runs to the end", "steps")
FAULTS = (
    "checkpoints lost",
    "torn checkpoints",
    "other losses",
    "files left behind",
    "too many kept",
    "processes left",
    "shared memory left",
    "ended by itself",
)


@dataclass(frozen=True)
class Said:
    """
    What a start said.

    Args:
        began: the step that it went on from; -1 where it did not come so far.
        losses: by step.
        saved: after each checkpoint its step, how many there were, and how much else was in the folder.
        ended: whether it made all steps.
    """

    began: int
    losses: dict[int, float]
    saved: tuple[tuple[int, int, int], ...]
    ended: bool

    @staticmethod
    def of(lines: Sequence[str]) -> Said:
        """What lines of `_killed_training` say."""
        text = "".join(f"{line}\n" for line in lines)
        began = re.search(r"^began (\d+)$", text, re.MULTILINE)
        losses = re.findall(r"^step (\d+) (\S+)$", text, re.MULTILINE)
        saved = re.findall(r"^saved (\d+) (\d+) (\d+)$", text, re.MULTILINE)
        return Said(
            int(began[1]) if began else -1,
            {int(step): float.fromhex(loss) for step, loss in losses},
            tuple((int(step), int(kept), int(others)) for step, kept, others in saved),
            "ended" in lines,
        )


@dataclass
class Run:
    """
    One run, from its first start to its last step.

    Args:
        folder: of its checkpoints.
        used: the numbers of ranks that it has had.
        newest: the step of the newest checkpoint that is there.
    """

    folder: Path
    used: set[int] = field(default_factory=set[int])
    newest: int = 0


def faults(said: Said, run: Run, torn: int, off: float) -> Iterator[str]:
    """
    What is wrong with a start, and with the folder that it left.

    Args:
        run: as it was before.
        torn: how many checkpoints of the folder are not whole.
        off: by how much its losses are off, at most.
    """
    if said.began not in (-1, run.newest):
        yield "checkpoints lost"
    if torn:
        yield "torn checkpoints"
    if off > (TOLERANCE if len(run.used) > 1 else 0.0):
        yield "other losses"
    if any(others for _, _, others in said.saved):
        yield "files left behind"
    if any(kept > KEPT for _, kept, _ in said.saved):
        yield "too many kept"


def checkpoints(folder: Path) -> tuple[int, int]:
    """The step of the newest whole checkpoint in a folder, 0 for none, and how many there are that are not whole."""
    found = sorted(folder.glob("step-*"))
    whole = [path for path in found if _is_whole(path)]
    return max((int(path.name.removeprefix("step-")) for path in whole), default=0), len(found) - len(whole)


def _is_whole(checkpoint: Path) -> bool:
    try:
        files = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))["files"]
        digests = {name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() for name in files}
    except (OSError, ValueError):
        return False
    return all(digests[name] == digest for name, (_, digest) in files.items())


@dataclass
class Chain:
    """
    Runs that are killed and started again, one after the other.

    Args:
        folder: for all that is written.
        choices: the numbers of ranks that a start may have.
        torchrun: the share of starts that are torchrun's.
        expected: by number of ranks, the losses of a run that was not killed.
    """

    folder: Path
    choices: Sequence[int]
    torchrun: float
    drawn: random.Random
    expected: dict[int, dict[int, float]]
    counted: Counter[str] = field(default_factory=Counter[str])
    places: Counter[str] = field(default_factory=Counter[str])
    most_off: float = 0.0
    slowest: float = 0.0
    _seconds: dict[bool, float] = field(default_factory=lambda: {True: 8.0, False: 1.0})

    def kill(self, count: int) -> None:
        """Start jobs until so many were killed."""
        run = Run(self.folder / "run-0")
        while self.counted["kills"] < count:
            run = self._start(run)

    def _start(self, run: Run) -> Run:
        """Start a job and kill it; the run to go on with."""
        ranks, is_torchrun = self.drawn.choice(self.choices), self.drawn.random() < self.torchrun
        run.used.add(ranks)
        (moment,) = self.drawn.choices(tuple(MOMENTS), tuple(MOMENTS.values()))
        aim = self._aim(ranks) if moment == "file" else None
        start = by_torchrun if is_torchrun else forked
        job = start(ranks, str(run.folder), str(self.folder / f"{ranks}.toml"), aim, self.folder / "errors")
        place = self._wait(job, moment, is_torchrun)
        found = list(self._kill(job, GONE[is_torchrun])) if place else []
        if place == ANY_TIME and any(run.folder.glob(".*")):
            place = AMID_SAVE
        said = Said.of(job.lines)
        if not place and not said.ended:
            found.append("ended by itself")
        if job.close():
            found.append("processes left")
        newest, torn = checkpoints(run.folder)
        off = _off(said.losses, self.expected[ranks])
        found += faults(said, run, torn, off)
        if newest < max((run.newest, *(step for step, _, _ in said.saved))):
            found.append("checkpoints lost")
        run.newest, self.most_off = newest, max(self.most_off, off)
        self._count(found, place, said, is_torchrun)
        print(f"{self.counted['kills']}: {run.folder.name} on {ranks} of {run.used}: {said.began} to {newest}; "
              f"{place or 'at its end'}; {', '.join(found) or 'well'}", file=sys.stderr, flush=True)  # fmt: skip
        return run if not said.ended else Run(self.folder / f"run-{self.counted['starts']}")

    def _count(self, found: Sequence[str], place: str, said: Said, is_torchrun: bool) -> None:
        self.counted.update(set(found))
        self.counted.update({"starts": 1, "steps": len(said.losses), "runs to the end": said.ended})
        self.counted["started by torchrun"] += is_torchrun
        if place:
            self.counted["kills"] += 1
            self.places[place] += 1

    def _aim(self, ranks: int) -> Aim:
        operation = self.drawn.choice(tuple(OPERATIONS))
        rank = 0 if OPERATIONS[operation] else self.drawn.randrange(ranks)
        return Aim(rank, operation, self.drawn.randrange(4))

    def _wait(self, job: Job, moment: str, is_torchrun: bool) -> str:
        """Wait until it is time to kill a job, and say where it is; empty where it has ended."""
        began = time.monotonic()
        if moment == "start-up":
            job.follow(self.drawn.uniform(0.0, self._seconds[is_torchrun]))
        elif job.follow(PATIENCE, ("step", "stands", "ended")) and not _stands(job):
            self._seconds[is_torchrun] = time.monotonic() - began
            longest = LONGEST_TO_FILE if moment == "file" else self.drawn.uniform(0.0, LONGEST)
            job.follow(longest, ("stands", "ended"))
        if "ended" in job.lines or job.is_over:
            job.follow(PATIENCE)
            return ""
        return _stands(job) or (ANY_TIME if any(line.startswith("began") for line in job.lines) else START_UP)

    def _kill(self, job: Job, gone: float) -> Iterator[str]:
        """Kill all processes, or one rank, or what started the ranks; what is wrong with the end of the others."""
        ranks = [process for process in job.processes() if process != job.launcher]
        self.drawn.shuffle(ranks)
        whom = self.drawn.choice(("all processes", "one rank", "launcher")) if ranks else "launcher"
        victims = {"all processes": [*ranks, job.launcher], "one rank": ranks[:1], "launcher": [job.launcher]}[whom]
        shared, at = _shared_memory([job.launcher, *ranks]), time.monotonic()
        self.counted[whom] += 1
        job.kill(victims)
        job.follow(gone)
        self.slowest = max(self.slowest, time.monotonic() - at)
        if any(path.exists() for path in shared):
            yield "shared memory left"

    def result(self) -> dict[str, float]:
        """What was counted and measured, in the order in which it is told."""
        measured = {"largest relative difference of a loss": self.most_off, "slowest end, s": self.slowest}
        places = (START_UP, ANY_TIME, AMID_SAVE, *(f"before {operation}" for operation in OPERATIONS))
        killed = {f"killed {place}": self.places[place] for place in places}
        return {name: self.counted[name] for name in (*COUNTS, *FAULTS)} | measured | killed


def _stands(job: Job) -> str:
    """Before what a rank stands still; empty where none does."""
    return next((line.removeprefix("stands ") for line in job.lines if line.startswith("stands")), "")


def _off(losses: Mapping[int, float], expected: Mapping[int, float]) -> float:
    """By how much losses are off, of their size, at most."""
    return max((abs(loss - expected[step]) / abs(expected[step]) for step, loss in losses.items()), default=0.0)


def _shared_memory(processes: Sequence[int]) -> set[Path]:
    """What processes have in the shared memory of the machine, under a name."""
    found: set[Path] = set()
    for process in processes:
        with suppress(OSError):
            mapped = Path(f"/proc/{process}/maps").read_text(encoding="utf-8").split()
            found |= {Path(each) for each in mapped if each.startswith("/dev/shm/") and Path(each).exists()}
    return found


def _whole_run(folder: Path, ranks: int) -> dict[int, float]:
    """The losses of a run that is not killed, and saves nothing."""
    (folder / f"{ranks}.toml").write_text(cluster_toml(generic_cluster(ranks)), encoding="utf-8")
    job = forked(ranks, "-", str(folder / f"{ranks}.toml"), None, folder / "errors")
    job.follow(PATIENCE)
    job.close()
    losses = Said.of(job.lines).losses
    if set(losses) != set(range(1, STEPS + 1)):
        raise RuntimeError(f"the run that is not killed failed: {(folder / 'errors').read_text()}")
    return losses


def main() -> None:
    """Print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--torchrun", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    options = parsed(parser, count=2, ranks=[2], torchrun=0.0)

    os.environ["OMP_NUM_THREADS"] = "1"
    drawn, results = random.Random(options.seed), dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory(prefix="shardwright-kills-") as made:
        expected = {ranks: _whole_run(Path(made), ranks) for ranks in options.ranks}
        for number, choices in enumerate((options.ranks[:1], options.ranks)):
            folder = Path(made) / str(number)
            folder.mkdir()
            for file in Path(made).glob("*.toml"):
                (folder / file.name).write_bytes(file.read_bytes())
            chain = Chain(folder, choices, options.torchrun, drawn, expected)
            chain.kill(options.count // 2 + number * (options.count % 2))
            results[f"on {', '.join(map(str, choices))} ranks"] = chain.result()
            if any(chain.counted[name] for name in FAULTS):
                print((folder / "errors").read_text(errors="replace"), file=sys.stderr)
    names = dict.fromkeys(name for each in results.values() for name in each)
    rows = [{"what": name, **{part: each.get(name, 0) for part, each in results.items()}} for name in names]
    publish("kills", rows, command=f"python benchmarks/kills.py --count {options.count} --seed {options.seed}")


if __name__ == "__main__":
    main()
