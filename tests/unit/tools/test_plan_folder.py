"""A truncated or changed plan.json is refused with the name of the entry."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.passes.planning.records import CandidateRecord
from shardwright.tools.cli import main
from shardwright.tools.plan_folder import CANDIDATE

GOOD: dict[str, Any] = {"mesh": {"gpu": 4}, "ranks": 4, "name": "s", "step": None, "predicted_step_s": 1.0}

CHANGED: dict[str, tuple[str, str]] = {
    "torn": (json.dumps(GOOD)[:30], "it is not JSON"),
    "a list": ("[]", "expected an object"),
    "deep": ("[" * 100_000, "it is not JSON"),
    "a mesh of text": (json.dumps({**GOOD, "mesh": {"gpu": "4"}}), "mesh.gpu is '4', expected a whole number"),
    "ranks of text": (json.dumps({**GOOD, "ranks": "4"}), "ranks is '4', expected a whole number"),
    "a candidate of a number": (json.dumps({**GOOD, "chosen_candidate": 3}), "is 3, expected an object"),
    "a candidate without a mesh": (json.dumps({**GOOD, "chosen_candidate": {}}), "chosen_candidate has no 'mesh'"),
    "no number": (json.dumps({**GOOD, "predicted_step_s": float("nan")}), "NaN is not a number"),
    "a number without end": (json.dumps({**GOOD, "predicted_step_s": 10**4000}), "is a whole number of"),
}


@pytest.mark.parametrize(("text", "message"), CHANGED.values(), ids=CHANGED)
def test_a_changed_report_is_refused(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    assert main(["explain", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert "internal error" not in told
    assert len(told) < 1000


@pytest.mark.parametrize("word", ["a" * 10_000, "a\0b"])
def test_a_long_argument_is_refused(word: str, capsys: pytest.CaptureFixture[str]):
    assert main(["explain", word]) == 1
    assert "argument 2" in capsys.readouterr().err


def test_every_entry_of_a_candidate_is_read():
    assert isinstance(CANDIDATE, dict)
    known = {name.removesuffix("?") for name in CANDIDATE}
    assert known == CandidateRecord.__required_keys__ | CandidateRecord.__optional_keys__
