"""A program as lowering writes it, on two ranks, compared with one device; how it starts, and its start-up errors."""

import re
from pathlib import Path

import pytest
import small_program
import torch
from forked import run_python, torchrun
from small_program import PLAN, compare_plans, train, train_on_one_device

from shardwright.runtime.spawn import run_ranks

pytestmark = pytest.mark.distributed

PROGRAM = Path(small_program.__file__)


def test_steps_equal_one_device():
    losses, state, gradient = train_on_one_device(4)
    for found_losses, found_state, found_gradient in run_ranks(train, 2, 4):
        assert found_losses == pytest.approx(losses, rel=1e-12)
        assert found_state.keys() == state.keys()
        for name, tensor in state.items():
            torch.testing.assert_close(found_state[name], tensor, rtol=1e-11, atol=1e-14)
        torch.testing.assert_close(found_gradient, gradient, rtol=1e-11, atol=1e-14)


def test_different_programs_are_refused_on_every_rank():
    first, second = run_ranks(compare_plans, 2)
    assert first == second
    assert first.startswith("the ranks run different programs: ranks [0] (on ")
    assert "; ranks [1] (on " in first


def test_torchrun_prints_losses_and_seconds():
    done = torchrun(2, str(PROGRAM), "--steps", "2", "--seed", "3", "--checked")
    assert done.returncode == 0, done.stderr
    first, _, last = done.stdout.splitlines()
    assert first == f"step 1: loss {train_on_one_device(1)[0][0]:.6f}"
    assert re.fullmatch(r"median \d+\.\d{4} s per step on 2 ranks", last)


def test_the_rank_that_fails_says_why(tmp_path: Path):
    program = tmp_path / "fails.py"
    program.write_text(
        "from small_program import PLAN, rt, step\n"
        "def fails(comm, *values):\n"
        "    return step(comm, *values[:7], values[7] / (1 - comm.rank), 1 // (1 - comm.rank))\n"
        "rt.main(PLAN, fails)\n"
    )
    done = torchrun(2, str(program))
    assert done.returncode == 1
    told = r"^linear: rank 1 \(\S+\): ZeroDivisionError in step 1: integer division or modulo by zero$"
    assert re.search(told, done.stderr, re.MULTILINE), done.stderr
    assert "linear: rank 0: ZeroDivisionError" not in done.stderr


def test_without_torchrun_the_error_names_the_command():
    done = run_python(str(PROGRAM))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"linear: rank 0: plan 'linear' is for 2 ranks on mesh {PLAN.mesh}, launched on 1: "
        "start with torchrun --nproc-per-node 2"
    )
