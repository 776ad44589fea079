"""Paths from users: folders of any name, and paths that are not files. No command hangs or changes other files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from shardwright.api.calibration.local_cluster import generic_cluster
from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.files import swap_folder
from shardwright.api.steps import find_step
from shardwright.ir.text_file import read_file, read_text, write_atomically
from shardwright.passes.pipeline_spec import PipelineError, parse_pipeline, quoted
from shardwright.tools.cli import main
from shardwright.tools.opt_tool import main as opt_tool

NAMES = ["a b", "é \U0001f600", "q\"uote's", "new\nline", "[bold] [red", "%s{}$(touch canary)", "-x", "a\\"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a plan."""
    step = compile_step(find_step("mlp-tiny"), generic_cluster(2), PlanOptions("eliminate"), name="mlp-tiny")
    return step.save(tmp_path_factory.mktemp("plans") / "plan")


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_may_lie_in_any_folder(
    name: str, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(plan, tmp_path / name)
    assert main(["simulate", f"./{name}"]) == 0
    assert main(["run", f"./{name}", "--nproc-per-node", "3"]) == 1
    assert "is planned for 2 ranks" in capfd.readouterr().err
    trace = tmp_path / name / "trace.json"
    assert main(["simulate", f"./{name}", "--trace", str(trace)]) == 0
    assert json.loads(trace.read_text())
    assert opt_tool([f"./{name}/step.mlir", "-o", f"./{name}/again.mlir"]) == 0
    assert (tmp_path / name / "again.mlir").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize("name", NAMES)
def test_a_path_in_a_pipeline_is_one_option(name: str):
    (found,) = parse_pipeline(f"search-strategy{{pins={quoted(name)}}}")
    assert getattr(found, "pins", None) == name


@pytest.mark.parametrize("name", ["a\rb", "\0", "\udcff", "a\x0cb"])
def test_a_path_that_a_pipeline_cannot_express_is_refused(name: str):
    with pytest.raises(PipelineError, match="cannot have the character"):
        quoted(name)


def _unreadable(folder: Path) -> dict[str, str]:
    """Return paths that are not files, each with its message."""
    os.mkfifo(folder / "pipe.mlir")
    (folder / "loop.mlir").symlink_to("loop.mlir")
    (folder / "folder.mlir").mkdir()
    (folder / "to_pipe.mlir").symlink_to("pipe.mlir")
    return {
        str(folder / "pipe.mlir"): "Is a pipe",
        str(folder / "to_pipe.mlir"): "Is a pipe",
        str(folder / "folder.mlir"): "Is a directory",
        str(folder / "loop.mlir"): "ymbolic link",
        str(folder / "missing.mlir"): "No such file",
        str(folder / "missing.mlir" / "x.mlir"): "No such file",
        "/dev/zero": "Is a device",
        "/dev/full": "Is a device",
    }


def test_a_path_that_is_not_a_file_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for path, message in _unreadable(tmp_path).items():
        plan = tmp_path / "plan"
        plan.mkdir()
        for name in ("plan.json", "step.mlir", "global.mlir", "program.py"):
            (plan / name).symlink_to(path)
        commands = [["simulate", str(plan)], ["explain", str(plan)], ["run", str(plan)]]
        commands.append(["replan", str(plan), "--cluster", "local-4", "--out", str(tmp_path / "new")])
        if path.endswith(".mlir"):
            commands.append(["plan", "mlp-tiny", "--cluster", path, "--out", str(tmp_path / "new")])
        for words in commands:
            assert main(words) == 1
            told = capsys.readouterr().err
            assert message in told, (words, told)
            assert "internal error" not in told
        assert opt_tool([path]) == 1
        assert message in capsys.readouterr().err
        shutil.rmtree(plan)
    assert not (tmp_path / "new").exists()


def test_the_program_of_a_plan_is_checked_before_it_runs(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(plan, tmp_path / "plan")
    (tmp_path / "plan" / "program.py").unlink()
    os.mkfifo(tmp_path / "plan" / "program.py")
    assert main(["run", str(tmp_path / "plan")]) == 1
    assert "Is a pipe" in capsys.readouterr().err
    report = json.loads((plan / "plan.json").read_text())
    (tmp_path / "plan" / "plan.json").write_text(json.dumps({**report, "ranks": 10**9}))
    assert main(["run", str(tmp_path / "plan")]) == 1
    assert "at most 1024" in capsys.readouterr().err


def test_a_large_file_is_not_read(tmp_path: Path):
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="Is larger than"):
        read_file(large)
    with pytest.raises(OSError, match="Is larger than 10 bytes"):
        read_text("/proc/self/status", most=10)
    assert read_text("/proc/self/status").startswith("Name:")


def test_a_write_to_a_missing_folder_names_the_file_of_the_user(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as raised:
        write_atomically(tmp_path / "missing" / "page.html", "text")
    assert raised.value.filename == str(tmp_path / "missing" / "page.html")


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    before = os.stat("/dev/null")
    (tmp_path / "null").symlink_to("/dev/null")
    for path in ("/dev/null", tmp_path / "null"):
        write_atomically(Path(path), "text")
        assert opt_tool([str(tmp_path / "x.mlir"), "-o", str(path)]) == 1
    assert os.stat("/dev/null").st_rdev == before.st_rdev
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        write_atomically(tmp_path / "pipe", "text")
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_a_plan_replaces_only_files_of_plans(tmp_path: Path):
    mine, folder = tmp_path / "mine", tmp_path / "plan"
    mine.write_text("mine")
    for others in (False, True):
        folder.mkdir(exist_ok=True)
        (folder / "a").unlink(missing_ok=True)
        (folder / "a").symlink_to(mine)
        if others:
            (folder / "notes").write_text("notes")
        swap_folder(folder, {"a": "1", "b": None})
        assert mine.read_text() == "mine"
        assert (folder / "a").read_text() == "1"
        assert not (folder / "a").is_symlink()
    (folder / "b").mkdir()
    (folder / "b" / "mine").write_text("mine")
    (folder / "notes").unlink()
    with pytest.raises(OSError, match="directory"):
        swap_folder(folder, {"a": "2", "b": "2"})
    assert (folder / "b" / "mine").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "plan"]
