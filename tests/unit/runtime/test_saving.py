"""A program saves and resumes: options of its command line, and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from split_cluster import split_cluster

from shardwright.api.compile import compile_step
from shardwright.ir.mesh import Mesh
from shardwright.lowering.codegen.load_program import load_program
from shardwright.models.registry import training_step
from shardwright.runtime.launch import launch
from shardwright.runtime.saving import SaveOptions
from shardwright.runtime.stages import Stage

Run = Callable[..., list[str]]

NONE: dict[str, object] = {"save": None, "save_every": None, "keep": None, "resume": False}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[Stage]:
    """Return a program of one rank."""
    made = compile_step(training_step("mlp-tiny"), split_cluster(Mesh.of(gpu=1)), step_spec="mlp-tiny")
    folder = made.save(tmp_path_factory.mktemp("plan"))
    return [Stage(*each) for each in load_program(folder / "program.py")]


@pytest.fixture
def ran(stages: list[Stage], capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the program and returns its printed steps, or its error."""

    def run(*arguments: str) -> list[str]:
        capsys.readouterr()
        try:
            launch(stages, arguments)
        except SystemExit:
            return [capsys.readouterr().err.splitlines()[-1]]
        return [line for line in capsys.readouterr().out.splitlines() if re.match("step|resumed", line)]

    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_resumed_run_equals_an_uninterrupted_one(ran: Run, tmp_path: Path):
    folder = str(tmp_path / "run")
    whole = ran("--steps", "7")
    assert ran("--steps", "5", "--save", folder, "--save-every", "2", "--resume") == whole[:5]
    assert names(tmp_path / "run") == ["step-00000004", "step-00000005"]
    again = ["--save", folder, "--save-every", "1", "--keep", "3", "--resume"]
    assert ran("--steps", "7", *again) == ["resumed after step 5", *whole[5:]]
    assert names(tmp_path / "run") == ["step-00000005", "step-00000006", "step-00000007"]
    assert ran("--steps", "7", *again) == ["resumed after step 7; no step is left"]


def test_a_run_restarted_by_torchrun_resumes_without_an_option(
    ran: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    arguments = ("--steps", "2", "--save", str(tmp_path))
    first = ran(*arguments)
    (refused,) = ran(*arguments)
    assert "has checkpoints of another run, the newest is step-00000002; give --resume to continue from it" in refused
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert ran("--steps", "3", *arguments[2:])[0] == "resumed after step 2"
    assert len(first) == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"save_every": 3}, "--save-every is an option of checkpoints, which are off; give --save FOLDER too"),
        ({"keep": 3}, "--keep is an option of checkpoints"),
        ({"resume": True}, "--resume needs --save FOLDER"),
        ({"save": "runs", "save_every": 0}, "--save-every 0: expected a whole number above 0"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(given: dict[str, object], told: str):
    with pytest.raises(ValueError, match=re.escape(told)):
        SaveOptions.taken_from({**NONE, **given})


def test_the_command_line_refuses_invalid_options(ran: Run, tmp_path: Path):
    assert "--resume needs --save FOLDER" in ran("--resume")[0]
    file = tmp_path / "file"
    file.touch()
    assert "this is a file; give a folder" in ran("--save", str(file))[0]
    assert "Not a directory; give a folder" in ran("--save", str(file / "runs"))[0]
