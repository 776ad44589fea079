"""
Send SIGKILL at random moments of training and saving; each restart must resume from a complete checkpoint.

    python benchmarks/kills.py [--count 500] [--ranks 2 3 4] [--torchrun 0.1] [--seed 0]

Short runs of 40 steps save after every step. A kill hits all processes of a job, one rank, or the launcher of the
ranks, at a random moment of start-up, before a random operation on the files of checkpoints, or at a random moment
after the first step. Then the job is started again in the same folder. The first half of the kills is on the first
number of `--ranks`; in the second half each start takes a random one. One start in ten is torchrun's; all others are
forked from a server with all imports loaded.

Each start is compared with a run that was never killed: the loss of every step must be equal bit for bit as long as the
run has had one number of ranks, else to a relative 1e-5. After each kill, code of this file checks that every
checkpoint in the folder is complete, and the next start must resume from the newest.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from _killed_jobs import Job, started
from _killed_training import OPERATIONS, STEPS, Aim
from _report import arguments, parsed, publish

from shardwright.api.calibration.local_cluster import generic_cluster
from shardwright.ir.cluster_file import cluster_toml

KEPT = 2
"""Number of checkpoints that `save` keeps."""

TOLERANCE = 1e-5
"""Relative tolerance of a loss in runs with several numbers of ranks."""

LONGEST, LONGEST_TO_FILE = 0.6, 3.0
"""Seconds after the first step: the latest kill, and the latest time to reach an operation on files."""

GONE = {False: 10.0, True: 30.0}
"""Seconds until a killed job has no processes: twice `FaultBounds().gone`; torchrun's jobs also import."""

PATIENCE = 120.0
"""Longest seconds between two lines of output of a start."""

START_UP, ANY_TIME, AMID_SAVE = "in start-up", "between saves", "amid a save"
"""Moments of kills other than operations on files."""

MOMENTS = {"start-up": 2, "file": 4, "time": 4}
"""Relative frequencies of the moments of kills."""

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
    The output of a start: the step where it resumed (-1 if it did not get that far), losses by step, and whether it
    ended.

    `saved` has for each checkpoint its step, and the numbers of checkpoints and of other entries in the folder.
    """

    began: int
    losses: dict[int, float]
    saved: tuple[tuple[int, int, int], ...]
    ended: bool

    @staticmethod
    def of(lines: Sequence[str]) -> Said:
        """Parse the output of `_killed_training`."""
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
    """One run: its folder, the numbers of ranks of its starts so far, and the step of its newest checkpoint."""

    folder: Path
    used: set[int] = field(default_factory=set[int])
    newest: int = 0


def faults(said: Said, run: Run, torn: int, off: float) -> Iterator[str]:
    """Yield the faults of a start of `run`, which left `torn` checkpoints, and whose losses are `off` at most."""
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
    """Return the step of the newest complete checkpoint in a folder (or 0), and the number of incomplete ones."""
    paths = sorted(folder.glob("step-*"))
    whole = [path for path in paths if _is_whole(path)]
    return max((int(path.name.removeprefix("step-")) for path in whole), default=0), len(paths) - len(whole)


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
    Consecutive runs that are killed and started again.

    A start has one of the numbers of ranks in `choices`, and a share of starts is torchrun's. `expected` has the losses
    of a run that was never killed, by number of ranks.
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
        """Start jobs until `count` jobs were killed."""
        run = Run(self.folder / "run-0")
        while self.counted["kills"] < count:
            run = self._start(run)

    def _start(self, run: Run) -> Run:
        """Start a job and kill it, and return the run to continue with."""
        ranks, is_torchrun = self.drawn.choice(self.choices), self.drawn.random() < self.torchrun
        run.used.add(ranks)
        (moment,) = self.drawn.choices(tuple(MOMENTS), tuple(MOMENTS.values()))
        aim = None
        if moment == "file":
            operation = self.drawn.choice(tuple(OPERATIONS))
            rank = 0 if OPERATIONS[operation] else self.drawn.randrange(ranks)
            aim = Aim(rank, operation, self.drawn.randrange(4))
        cluster, errors = str(self.folder / f"{ranks}.toml"), self.folder / "errors"
        job = started(is_torchrun, ranks, str(run.folder), cluster, aim, errors)
        place = self._wait(job, moment, is_torchrun)
        problems = self._kill(job, GONE[is_torchrun]) if place else list[str]()
        if place == ANY_TIME and any(run.folder.glob(".*")):
            place = AMID_SAVE
        said = Said.of(job.lines)
        if not place and not said.ended:
            problems.append("ended by itself")
        if job.close():
            problems.append("processes left")
        newest, torn = checkpoints(run.folder)
        expected = self.expected[ranks]
        errors_of = (abs(loss - expected[step]) / abs(expected[step]) for step, loss in said.losses.items())
        off = max(errors_of, default=0.0)
        problems += faults(said, run, torn, off)
        if newest < max((run.newest, *(step for step, _, _ in said.saved))):
            problems.append("checkpoints lost")
        run.newest, self.most_off = newest, max(self.most_off, off)
        self.counted.update(set(problems))
        self.counted.update({"starts": 1, "steps": len(said.losses), "runs to the end": said.ended})
        self.counted["started by torchrun"] += is_torchrun
        if place:
            self.counted["kills"] += 1
            self.places[place] += 1
        print(f"{self.counted['kills']}: {run.folder.name} on {ranks} of {run.used}: {said.began} to {newest}; "
              f"{place or 'at its end'}; {', '.join(problems) or 'well'}", file=sys.stderr, flush=True)  # fmt: skip
        return run if not said.ended else Run(self.folder / f"run-{self.counted['starts']}")

    def _wait(self, job: Job, moment: str, is_torchrun: bool) -> str:
        """Wait for the moment of the kill, and return a text that names it, or "" if the job ended before."""
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

    def _kill(self, job: Job, gone: float) -> list[str]:
        """Kill all processes, one rank or the launcher, and return faults of the end of the others."""
        ranks = [process for process in job.processes() if process != job.launcher]
        self.drawn.shuffle(ranks)
        target = self.drawn.choice(("all processes", "one rank", "launcher")) if ranks else "launcher"
        victims = {"all processes": [*ranks, job.launcher], "one rank": ranks[:1], "launcher": [job.launcher]}[target]
        shared, at = set[Path](), time.monotonic()
        for process in (job.launcher, *ranks):
            with suppress(OSError):
                mapped = Path(f"/proc/{process}/maps").read_text(encoding="utf-8").split()
                shared |= {Path(word) for word in mapped if word.startswith("/dev/shm/") and Path(word).exists()}
        self.counted[target] += 1
        job.kill(victims)
        job.follow(gone)
        self.slowest = max(self.slowest, time.monotonic() - at)
        return ["shared memory left"] if any(path.exists() for path in shared) else []

    def result(self) -> dict[str, float]:
        """Return all counts and measurements, in the order of the table."""
        measured = {"largest relative difference of a loss": self.most_off, "slowest end, s": self.slowest}
        places = (START_UP, ANY_TIME, AMID_SAVE, *(f"before {operation}" for operation in OPERATIONS))
        killed = {f"killed {place}": self.places[place] for place in places}
        return {name: self.counted[name] for name in (*COUNTS, *FAULTS)} | measured | killed


def _stands(job: Job) -> str:
    """Return the operation before which a rank waits, or ""."""
    return next((line.removeprefix("stands ") for line in job.lines if line.startswith("stands")), "")


def _whole_run(folder: Path, ranks: int) -> dict[int, float]:
    """Return the losses of a run that saves no checkpoints and is never killed."""
    (folder / f"{ranks}.toml").write_text(cluster_toml(generic_cluster(ranks)), encoding="utf-8")
    job = started(False, ranks, "-", str(folder / f"{ranks}.toml"), None, folder / "errors")
    job.follow(PATIENCE)
    job.close()
    losses = Said.of(job.lines).losses
    if set(losses) != set(range(1, STEPS + 1)):
        raise RuntimeError(f"the reference run without kills failed: {(folder / 'errors').read_text()}")
    return losses


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--torchrun", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    options = parsed(parser, count=2, ranks=[2], torchrun=0.0)

    os.environ["OMP_NUM_THREADS"] = "1"
    drawn, results = random.Random(options.seed), dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory(prefix="shardwright-kills-") as path:
        expected = {ranks: _whole_run(Path(path), ranks) for ranks in options.ranks}
        for number, choices in enumerate((options.ranks[:1], options.ranks)):
            folder = Path(path) / str(number)
            folder.mkdir()
            for file in Path(path).glob("*.toml"):
                (folder / file.name).write_bytes(file.read_bytes())
            chain = Chain(folder, choices, options.torchrun, drawn, expected)
            chain.kill(options.count // 2 + number * (options.count % 2))
            results[f"on {', '.join(map(str, choices))} ranks"] = chain.result()
            if any(chain.counted[name] for name in FAULTS):
                print((folder / "errors").read_text(errors="replace"), file=sys.stderr)
    names = dict.fromkeys(name for result in results.values() for name in result)
    rows = [{"what": name, **{part: result.get(name, 0) for part, result in results.items()}} for name in names]
    publish("kills", rows)


if __name__ == "__main__":
    main()
