"""A truncated or changed plan.json is refused with the name of the entry."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.ir.json_shape import fault_of
from shardwright.ir.mesh import Mesh
from shardwright.ir.pins import Pin
from shardwright.ir.sharding import Sharding
from shardwright.passes.planning.candidates import Candidate, Layout, preset, searched
from shardwright.passes.planning.records import Chosen
from shardwright.tools.cli import main
from shardwright.tools.plan_folder import CANDIDATE, TRIED

MESH = Mesh.of(node=2, gpu=2)

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


CANDIDATES = {
    "a preset": Candidate(Layout(MESH), preset(("dp", ("node",)), ("tp", ("gpu",)))),
    "a search": Candidate(Layout(MESH, "duplex", 2, fused=True, keep=0.3, chunked=True), searched(0.25, 1.0)),
    "a pipeline": Candidate(Layout(MESH, "pipeline", 4, 2, "1f1b", chunks=2, ranks=(0, 1, 2, 3)), searched(1.0, 1.0)),
}


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_candidate_is_read_as_it_was_written(name: str):
    pins = (Pin("*.weight", Sharding.replicated(2)), Pin(preset="dp"))
    chosen = Chosen(CANDIDATES[name], pins, MESH)
    record = json.loads(json.dumps(chosen.record()))
    assert fault_of(record, CANDIDATE) is None
    assert Chosen.read(record) == chosen
    record["choice"]["name"] = "search(0.25, 1)"
    assert fault_of(record, CANDIDATE) is None


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no mode": ({"mode": 1}, "mode is 1, expected text"),
    "a mesh of text": ({"mesh": {"gpu": "4"}}, "mesh.gpu is '4', expected a whole number"),
    "ranks of numbers": ({"ranks": [0, 0.5]}, "ranks[1] is 0.5, expected a whole number from 0 to 9007199254740991"),
    "a rank below 0": ({"ranks": [0, -1]}, "ranks[1] is -1, expected a whole number from 0 to 9007199254740991"),
    "a pin of nothing": ({"pins": [{"value": "w"}]}, "pins[0] has no 'sharding'"),
    "an unknown entry": ({"speed": 1}, "speed is not expected"),
    "keep as text": ({"keep": "all"}, "keep is 'all', expected a number or a whole number"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_changed_candidate_is_refused_with_its_entry(name: str):
    changed, message = FAULTS[name]
    record = {**Chosen(CANDIDATES["a preset"], (), MESH).record(), **changed}
    assert fault_of(record, CANDIDATE) == message


def test_the_record_of_a_candidate_of_an_older_version_is_read():
    older = {"name": "dp on 4", "why": "slower", "step": 0.1, "peak_bytes": 1.5e9, "memory_bytes": 2e9, "fits": True}
    assert fault_of(older, TRIED) is None
