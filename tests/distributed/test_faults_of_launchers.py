"""Launchers of jobs: no rank outlives its parent, sockets listen only on loopback, and Ctrl-C is not an error."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from faulty_jobs import asked_apart

from shardwright.runtime.spawn import run_ranks

SUPPORT = Path(__file__).parents[1] / "support"
MOST_SECONDS = 30.0

RUNS = ("whole", "attempt 0", "attempt 1")
"""The runs whose losses `faulty_steps.killed_once` prints."""

GROUP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
"""Code of a script that makes its own process group."""


def started(*command: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        # In a shell without job control, background jobs and their children ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def line_of(job: subprocess.Popen[str], begin: str) -> str:
    """Return the first line of output that begins with `begin`."""
    assert job.stdout is not None
    for line in job.stdout:
        if line.startswith(begin):
            return line
    raise AssertionError(f"no line {begin!r}; errors: {job.communicate()[1]}")


def descendants(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found: list[int] = []
    for task in tasks:
        # A thread may have ended since it was listed.
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text().split())
    return [*found, *(each for child in found for each in descendants(child))]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and _state(pid) != "Z"]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def ended(pids: list[int], within: float) -> bool:
    deadline = time.monotonic() + within
    while (left := alive(pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left


def listened_on(pids: list[int]) -> set[str]:
    """Return the listening addresses of processes, as in `/proc/net`."""
    inodes = {
        os.readlink(fd).removeprefix("socket:[").removesuffix("]")
        for pid in pids
        for fd in Path(f"/proc/{pid}/fd").iterdir()
        if os.path.lexists(fd) and os.readlink(fd).startswith("socket:[")
    }
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


@pytest.mark.distributed
def test_ranks_die_with_torchrun(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("import os, faulty_steps\nfaulty_steps.alive_after_agent(int(os.environ['RANK']))\n")
    job = started("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script))
    line_of(job, "training")
    ranks = descendants(job.pid)
    assert len(alive(ranks)) >= 2
    job.kill()
    assert ended(ranks, 5.0)
    errors = job.communicate(timeout=MOST_SECONDS)[1]
    assert "Traceback" not in errors


@pytest.mark.distributed
def test_ranks_that_torchrun_restarts_resume_with_the_same_losses(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("import sys, faulty_steps\nfaulty_steps.killed_once(sys.argv[1])\n")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    job = started(*torchrun, str(script), str(tmp_path / "runs"))
    printed, errors = job.communicate(timeout=4 * MOST_SECONDS)
    assert job.returncode == 0, errors
    whole, killed, resumed = (dict(re.findall(rf"^{name} (\d+) (\S+)$", printed, re.MULTILINE)) for name in RUNS)
    assert len(whole) == 8
    assert killed | resumed == whole
    assert min(map(int, resumed)) <= max(map(int, killed)) + 1 < max(map(int, resumed))
    # The report of torchrun also contains the message.
    assert len(re.findall(r"^Sequential: rank 1 \(\S+\) is gone: it was killed", errors, re.MULTILINE)) == 1


@pytest.mark.distributed
def test_run_listens_on_loopback_and_ends_cleanly_when_interrupted():
    job = started("-m", "shardwright", "run", "mlp-tiny", "--nproc-per-node", "2", "--steps", "1000000000")
    line_of(job, "step 3")
    ranks = descendants(job.pid)
    assert listened_on([job.pid, *ranks]) <= {"0100007F", "0000000000000000FFFF00000100007F"}
    os.kill(job.pid, signal.SIGINT)
    _, errors = job.communicate(timeout=MOST_SECONDS)
    assert job.returncode == 130
    *of_ranks, last = [line for line in errors.splitlines() if "planning" not in line]
    assert last == "shardwright: interrupted, and all ranks have ended"
    assert all(re.fullmatch(r"mlp-tiny: rank \d \(\S+\): interrupted", line) for line in of_ranks), of_ranks
    assert not alive(ranks)


@pytest.mark.distributed
def test_ranks_may_start_processes():
    assert run_ranks(asked_apart, 1) == [3]


@pytest.mark.distributed
@pytest.mark.parametrize("group", ["", pytest.param(GROUP, marks=pytest.mark.thorough)])
def test_forked_children_of_a_rank_do_not_take_part_in_the_job(group: str, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(f"{group}import faulty_steps\nfaulty_steps.forks()\n")
    job = started("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script))
    printed, errors = job.communicate(timeout=4 * MOST_SECONDS)
    assert job.returncode == 0, errors
    # Both ranks write at once, so their lines may interleave.
    assert sorted(re.findall(r"child \d|done", printed)) == ["child 1"] * 4 + ["child 3"] * 2 + ["done"] * 2
    assert errors.count("KeyError: 'no such sample'") == 2
    assert errors.count("RuntimeError: this process was forked from a rank, and has no part in its job") == 2


@pytest.mark.distributed
def test_a_rank_that_leaves_before_parallelize_is_not_waited_for(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("import os, faulty_steps\nif os.environ['RANK'] != '1': faulty_steps.planned(3)\n")
    job = started("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(script))
    _, errors = job.communicate(timeout=2 * MOST_SECONDS)
    assert job.returncode == 1
    (line,) = (line for line in errors.splitlines() if line.startswith("Sequential"))
    told = r"Sequential: rank [02]: ranks 1 of the job ended before all had come: check what they do before parallelize"
    assert re.match(told, line), line
