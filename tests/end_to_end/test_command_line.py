"""The command line as a user runs it, in separate processes: plan, run, fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forked import Done, run_python, torchrun
from pair_cluster import PAIR_CLUSTER

STEP = '''
"""A training step of a user's own."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import shardwright as sw


def make():
    torch.manual_seed(7)
    batch = (torch.randn(8, 6), torch.randint(4, (8,)))
    model = partial(nn.Sequential, nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    return sw.TrainingStep(model, F.cross_entropy, partial(torch.optim.SGD, lr=0.5), batch)


def unseen():
    class Chooses(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x):
            return self.layer(x) if x.sum().item() > 0 else -self.layer(x)

    batch = (torch.randn(8, 6), torch.randint(4, (8,)))
    return sw.TrainingStep(Chooses, F.cross_entropy, torch.optim.SGD, batch)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the working folder of a user: a step, a cluster and a plan of mlp-tiny for two ranks."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "my_step.py").write_text(STEP)
    (folder / "pair.toml").write_text(PAIR_CLUSTER)
    done = shardwright(folder, "plan", "mlp-tiny", "--cluster", "pair.toml", "--out", "plan", "--pins", "dp")
    assert done.returncode == 0, done.stderr
    return folder


def shardwright(folder: Path, *arguments: str) -> Done:
    return run_python("-m", "shardwright.tools.cli", *arguments, folder=folder)


def losses(done: Done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return re.findall(r"^step \d+: loss (\S+)$", done.stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    """Return the losses of three steps of the plan."""
    return losses(shardwright(folder, "run", "plan", "--steps", "3"))


def test_a_plan_runs_and_its_program_runs_without_the_compiler(folder: Path, expected: list[str]):
    assert len(expected) == 3
    assert float(expected[2]) < float(expected[0])
    # A program is an ordinary file: here it runs outside of its plan, without the other files of the plan.
    (folder / "elsewhere.py").write_text((folder / "plan" / "program.py").read_text())
    assert losses(torchrun(2, "elsewhere.py", "--steps", "3", folder=folder)) == expected


def test_a_users_step_is_planned_run_and_resumed_on_another_number_of_ranks(folder: Path):
    command = ("run", "my_step:make", "--save", "saved", "--resume")
    done = shardwright(folder, *command, "--nproc-per-node", "2", "--steps", "2")
    assert len(losses(done)) == 2
    done = shardwright(folder, *command, "--nproc-per-node", "1", "--steps", "3")
    assert len(losses(done)) == 1
    assert "resumed after step 2" in done.stdout


PIPELINE = "prepare,partition-stages{stages=2},search-strategy,program{mode=pipeline parts=2 schedule=1f1b}"


def test_a_pipeline_is_planned_and_runs_and_gives_the_same_losses(folder: Path, expected: list[str]):
    passes = ("--pipeline", PIPELINE)
    planned = shardwright(folder, "plan", "mlp-tiny", "--cluster", "pair.toml", *passes, "--out", "deep")
    assert planned.returncode == 0, planned.stderr
    run = shardwright(folder, "run", "deep", "--steps", "3", "--overlap", "measured.json")
    assert losses(run) == expected
    assert re.search(r"measured: \S+ m?s, the median of 2 steps\n.*overlap ratio\nrank 0 \(stage 0\)", run.stdout)
    shown = shardwright(folder, "simulate", "deep", "--measured", "measured.json")
    assert shown.returncode == 0, shown.stderr
    assert len(re.findall(r"(?s)stage 0 to +predicted .*? measured ", shown.stdout)) >= 2


@pytest.mark.thorough
def test_a_compiled_run_gives_the_same_losses(folder: Path, expected: list[str]):
    assert losses(shardwright(folder, "run", "plan", "--steps", "3", "--compile")) == expected


def test_a_program_on_the_wrong_number_of_ranks_is_refused(folder: Path):
    done = torchrun(1, "plan/program.py", "--steps", "1", folder=folder)
    assert done.returncode == 1
    assert "is for 2 ranks" in done.stderr
    assert "start with torchrun --nproc-per-node 2" in done.stderr


def test_ranks_with_different_plans_are_refused(folder: Path):
    planned = shardwright(folder, "plan", "mlp-tiny", "--cluster", "pair.toml", "--out", "other", "--pins", "tp")
    assert planned.returncode == 0, planned.stderr
    (folder / "mixed.py").write_text(
        "import os, runpy\n"
        "name = ('plan', 'other')[int(os.environ['RANK'])]\n"
        "runpy.run_path(f'{name}/program.py', run_name='__main__')\n"
    )
    done = torchrun(2, "mixed.py", "--steps", "1", folder=folder)
    assert done.returncode == 1
    assert "the ranks run different programs: ranks [0]" in done.stderr
    assert "start all ranks from the same file, with the same versions" in done.stderr


def test_a_rank_that_fails_ends_the_run_with_its_message(folder: Path):
    text = (folder / "plan" / "program.py").read_text()
    broken = folder / "broken"
    broken.mkdir()
    (broken / "plan.json").write_text((folder / "plan" / "plan.json").read_text())
    (broken / "program.py").write_text(re.sub(r"step_spec=\S+?,", 'step_spec="gone:step",', text))
    done = shardwright(folder, "run", "broken")
    assert done.returncode == 1
    assert "the plan's model is 'gone:step'" in done.stderr
    assert re.search(r"shardwright: error: rank \d ended with exit code 1; its message is above", done.stderr)
    assert "ChildFailedError" not in done.stderr


def test_a_model_that_cannot_be_captured_is_refused_with_its_line(folder: Path):
    done = shardwright(folder, "check", "my_step:unseen", "--mesh", "2")
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs the values of a tensor" in done.stderr
    assert re.search(r"my_step\.py:\d+: ", done.stderr)
    assert "Traceback" not in done.stderr


def test_check_compares_ranks_with_one_device(folder: Path):
    arguments = ["--mesh", "2", "--cluster", "pair.toml", "--steps", "2", "--dtype", "float64"]
    done = shardwright(folder, "check", "my_step:make", *arguments)
    assert done.returncode == 0, done.stderr
    assert "agrees with one device over 2 steps" in done.stdout


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "cluster",
            PAIR_CLUSTER.replace("1e-7", '"soon"'),
            "bad.toml:10: [link.gpu] latency: is 'soon', expected a number",
        ),
        ("pin", '[[pin]]\npreset = "pd"\n', "bad.toml:1: pin 1: preset 'pd' is not one of dp, zero1, zero2, zero3, tp"),
        ("pin", '[[pin]]\nvalue = "no.*"\nsharding = "[{}]"\n', "pin 'no.*' matches no parameter"),
    ],
)
def test_an_invalid_file_is_refused(folder: Path, name: str, text: str, message: str):
    (folder / "bad.toml").write_text(text)
    files = {"cluster": "pair.toml", name: "bad.toml"}
    options = [word for key, file in files.items() for word in (f"--{key}", file)]
    done = shardwright(folder, "plan", "mlp-tiny", "--out", "bad", *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "bad").exists()
