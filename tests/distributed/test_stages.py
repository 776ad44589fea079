"""Programs of several stages in one job: they train and gather, and all ranks end when one dies."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import staged_program
import torch
from forked import torchrun
from staged_program import train, train_on_one_device, train_until_killed

from shardwright.runtime.spawn import RankError, run_ranks

pytestmark = pytest.mark.distributed

PROGRAM = Path(staged_program.__file__)
MOST_SECONDS = 10


def test_steps_equal_one_device():
    losses, state, gradient = train_on_one_device(4)
    for found_losses, found_state, found_gradient in run_ranks(train, 4, 4):
        assert found_losses == pytest.approx(losses, rel=1e-12)
        assert found_state.keys() == state.keys()
        for name, tensor in state.items():
            torch.testing.assert_close(found_state[name], tensor, rtol=1e-11, atol=1e-14)
        torch.testing.assert_close(found_gradient, gradient, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("rank", [1])
def test_a_killed_rank_ends_all_spawned_ranks(rank: int):
    start = time.monotonic()
    with pytest.raises(RankError, match=rf"rank {rank} of 4 was killed by SIGKILL before it returned"):
        run_ranks(train_until_killed, 4, rank, 2)
    assert time.monotonic() - start < MOST_SECONDS


def test_torchrun_runs_all_stages():
    done = torchrun(4, str(PROGRAM), "--steps", "2", "--seed", "3", "--checked")
    assert done.returncode == 0, done.stderr
    first, second, last = done.stdout.splitlines()
    losses = train_on_one_device(1)[0]
    assert first == f"step 1: loss {losses[0]:.6f}"
    assert second.startswith("step 2: loss ")
    assert re.fullmatch(r"median \d+\.\d{4} s per step on 4 ranks", last)


def test_too_few_ranks_get_an_error_with_the_expected_number():
    done = torchrun(2, str(PROGRAM))
    assert not done.stdout
    assert 'plan \'three\' is for 4 ranks on mesh <["gpu"=1]> on [0], <["gpu"=2]> on [1, 2]' in done.stderr
    assert "launched on 2: start with torchrun --nproc-per-node 4" in done.stderr


# `test_faults.py` kills another rank than the first.
@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_killed_rank_ends_a_torchrun_job_with_one_message(rank: int):
    # Processes of `forked` are no children of the launcher.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    job = subprocess.Popen(
        [*command, str(PROGRAM), "--steps", "1000000000"], env=environment, stdout=pipe, stderr=pipe, text=True
    )
    assert job.stdout is not None
    job.stdout.readline()
    (victim,) = [pid for pid in _children(job.pid) if _environment(pid).get("RANK") == str(rank)]
    os.kill(victim, signal.SIGKILL)
    start = time.monotonic()
    _, errors = job.communicate(timeout=30)
    assert time.monotonic() - start < MOST_SECONDS
    assert job.returncode == 1
    (told,) = [line for line in errors.splitlines() if line.startswith("three: ")]
    assert re.match(rf"three: rank {rank} \(\S+\) is gone: it was killed", told), told


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
