"""The output of commands: JSON alone on standard output, and tables of a bounded width in pipes."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pair_cluster import PAIR_CLUSTER
from rich.table import Table

from shardwright.api.plan_tables import print_parts, text_of
from shardwright.tools.cli import main, only_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a cluster file and a plan."""
    folder = tmp_path_factory.mktemp("json")
    (folder / "pair.toml").write_text(PAIR_CLUSTER)
    return folder


def asked(capfd: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    """Return the JSON that a command prints."""
    capfd.readouterr()
    assert main([*map(str, arguments), "--json"]) == code
    return json.loads(capfd.readouterr().out)


def test_plan_and_simulate_print_json(folder: Path, capfd: pytest.CaptureFixture[str]):
    plan = folder / "plan"
    found = asked(capfd, "plan", "mlp-tiny", "--cluster", folder / "pair.toml", "--out", plan, "--pins", "zero3")
    written = json.loads((plan / "plan.json").read_text())
    del written["total_seconds"]
    assert found == {"folder": str(plan), **written}

    step = asked(capfd, "simulate", plan)
    assert step["step"] == pytest.approx(found["predicted_step_s"])
    (ranks,) = step["ranks"]
    assert ranks["compute"] == pytest.approx(found["predicted_compute_s"])
    assert ranks["sent"]
    assert ranks["peak_bytes"] == max(found["peak_bytes"])
    assert {row["phase"] for row in step["overlap"]} >= {"forward", "backward", "all"}
    assert sum(row["seconds"] for row in step["critical_path"]) == pytest.approx(step["step"])

    swept = asked(capfd, "simulate", plan, "--sweep", "link.gpu.bandwidth=10MB/s..1GB/s:3")
    assert swept["field"] == "link.gpu.bandwidth"
    steps = [point["step"] for point in swept["points"]]
    assert len(steps) == 3
    assert steps == sorted(steps, reverse=True)


def test_check_prints_json(capfd: pytest.CaptureFixture[str]):
    arguments = ("--mesh", "2", "--backend", "interpreter", "--steps", "1", "--pins", "dp")
    found = asked(capfd, "check", "mlp-tiny", *arguments)
    assert found["passed"]
    assert {error["kind"] for error in found["errors"]} >= {"loss", "gradient"}
    assert all(error["allowed"] for error in found["errors"])
    found = asked(capfd, "check", "odd_steps:drifting", "--mesh", "2", "--backend", "interpreter", "--steps", 1, code=1)
    assert not found["passed"]
    assert not all(error["allowed"] for error in found["errors"])


def test_all_other_output_goes_to_standard_error(capfd: pytest.CaptureFixture[str]):
    with only_json(True) as answer:
        print("the user's model")
        os.write(1, b"a process\n")
        answer({"seconds": float("nan"), "rows": ({"count": 1},)})
    shown = capfd.readouterr()
    assert json.loads(shown.out) == {"seconds": None, "rows": [{"count": 1}]}
    assert {"the user's model", "a process"} <= set(shown.err.splitlines())


def test_an_error_prints_no_json(capfd: pytest.CaptureFixture[str]):
    assert main(["simulate", str(Path(__file__).parent), "--json"]) == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "error:" in shown.err


def wide_table() -> Table:
    table = Table("plan", "why", title="plans")
    table.add_row("searched on 4x16 " * 3, "because of " + "x" * 150)
    return table


@pytest.mark.parametrize(("columns", "most"), [(None, 100), ("60", 60), ("no number", 100)])
def test_tables_in_a_pipe_wrap(columns: str | None, most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    lines = text_of([wide_table(), "one line: " + "y" * 150]).splitlines()
    assert max(map(len, lines[:-1])) <= most
    # Nothing is cut off, and text that a user may copy stays on one line.
    assert sum(line.count("x") for line in lines[:-1]) == 150 + 3
    assert lines[-1] == "one line: " + "y" * 150


def test_tables_on_a_terminal_have_its_width(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    print_parts([wide_table()], terminal)
    lines = terminal.getvalue().splitlines()
    assert any("┃" in line for line in lines)
    assert terminal.getvalue().count("x") == 150 + 3
