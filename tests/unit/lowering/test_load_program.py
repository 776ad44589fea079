"""Loading programs: plans and steps, and errors with their place."""

import traceback
from pathlib import Path

import pytest

from shardwright.lowering.codegen.load_program import ProgramError, load_program, load_text


def test_plan_and_step_are_returned(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("PLAN = 3\n\n\ndef step(comm):\n    return PLAN\n")
    [(plan, step)] = load_program(path)
    assert (plan, step(None)) == (3, 3)


def test_stages_are_returned() -> None:
    stages = load_text("def first(): pass\ndef last(): pass\nSTAGES = ((1, first), (2, last))\n", "<program>")
    assert [(plan, step.__name__) for plan, step in stages] == [(1, "first"), (2, "last")]


def test_main_is_not_run() -> None:
    text = 'PLAN = 3\ndef step(comm): pass\nif __name__ == "__main__":\n    1 / 0\n'
    assert [plan for plan, _ in load_text(text, "<program>")] == [3]


def test_traceback_shows_lines_of_a_text_without_file() -> None:
    [(_, step)] = load_text("PLAN = 3\ndef step(comm):\n    return comm.missing  # here\n", "<program>")
    with pytest.raises(AttributeError) as caught:
        step(None)
    assert "return comm.missing  # here" in "".join(traceback.format_exception(caught.value))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"cannot read the program .*nothing\.py"):
        load_program(tmp_path / "nothing.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PLAN = 3\ndef step(:\n", r"<program>:2: invalid syntax"),
        ("PLAN = 3\n\nimport nowhere\n", r"<program>:3: ModuleNotFoundError: No module named 'nowhere'"),
        ("PLAN = 3\n", r"<program> lacks the step function step; expected a file that shardwright wrote"),
        ("x = 3\n", r"<program> lacks the plan PLAN and the step function step"),
    ],
)
def test_invalid_text_of_a_program_is_refused(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        load_text(text, "<program>")
