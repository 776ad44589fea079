"""`shardwright explain` in this process: the reasons for a plan, and the costs of other decisions."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from shardwright.api.why_not import why_not
from shardwright.passes.planning.legend import legend
from shardwright.passes.planning.summary import Tried
from shardwright.tools.cli import main

OWN = {"gpu": 4}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    assert main(["plan", "mlp-tiny", "--cluster", "local-4", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a plan of two stages with one pinned value."""
    folder = tmp_path_factory.mktemp("pipeline")
    pins = folder / "pins.toml"
    pins.write_text("[[pin]]\nvalue = \"*0.weight\"\nsharding = '[{}, {}]'\n")
    arguments = ["plan", "mlp-tiny", "--cluster", "local-4", "--out", str(folder), "--pins", str(pins)]
    assert main([*arguments, "--stages", "2", "--micro-batches", "4"]) == 0
    return folder


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out


def test_a_plan_is_compared_with_other_kinds(plan: Path, capsys: pytest.CaptureFixture[str]):
    shown = asked(capsys, str(plan))
    report = json.loads((plan / "plan.json").read_text())
    for part in ("mlp-tiny on local-4", report["chosen"], "ZeRO 3", "a pipeline", "it is the plan", "slower by"):
        assert part in shown
    # In a pipe, each row is one line without boxes.
    assert not set(shown) & set("│┃━─")
    assert any(line.startswith("duplex ") for line in shown.splitlines())


def test_json_has_the_same_content(plan: Path, capsys: pytest.CaptureFixture[str]):
    found = json.loads(asked(capsys, str(plan), "--json"))
    report = json.loads((plan / "plan.json").read_text())
    assert found["chosen"] == report["chosen"]
    assert found["step"] == report["predicted_step_s"]
    kinds = {each["kind"]: each for each in found["why_not"]}
    own = kinds["the cluster's own mesh"]["best"]["family"]
    assert own["mesh"] == OWN
    assert all(each["slower"] is None or each["slower"] >= 0 for each in found["why_not"])


def test_candidates_have_a_family_and_the_plan_has_its_undecided_step(plan: Path):
    report = json.loads((plan / "plan.json").read_text())
    assert {each["family"]["mode"] for each in report["candidates"]} >= {"whole"}
    assert report["chosen_candidate"]["own_mesh"] == OWN
    assert (plan / "global.mlir").exists()
    assert "spmd.signature" not in (plan / "global.mlir").read_text()


def test_a_parameter_has_alternatives_with_their_steps(plan: Path, capsys: pytest.CaptureFixture[str]):
    found = json.loads(asked(capsys, str(plan), parameter(plan), "--json"))
    report = json.loads((plan / "plan.json").read_text())
    (decided,) = found["decided"]
    assert found["step"] == pytest.approx(report["predicted_step_s"])
    assert found["states"] == 3
    homes = [each["state"] for each in found["alternatives"]]
    assert decided["home"] not in homes
    assert len(homes) == 2
    assert all(each["difference"] == each["step"] - found["step"] for each in found["alternatives"])
    shown = asked(capsys, str(plan), parameter(plan))
    assert "all else free to adapt" in shown
    assert decided["home"] in shown


def test_an_op_is_named_by_its_result(plan: Path, capsys: pytest.CaptureFixture[str]):
    found = json.loads(asked(capsys, str(plan), operation(plan), "--json"))
    (decided,) = found["decided"]
    assert decided["op"].startswith("aten.")
    assert found["alternatives"]
    assert decided["signature"] not in [each["state"] for each in found["alternatives"]]
    assert "takes" in asked(capsys, str(plan), operation(plan))


def test_values_of_a_glob_are_decided_together_or_refused(plan: Path, capsys: pytest.CaptureFixture[str]):
    name = parameter(plan)
    found = json.loads(asked(capsys, str(plan), f"{name}.exp_avg*", "--json"))
    assert [each["name"] for each in found["decided"]] == [f"{name}.exp_avg", f"{name}.exp_avg_sq"]
    assert main(["explain", str(plan), "*"]) == 1
    assert "have different alternatives: choose one of them" in capsys.readouterr().err


def test_a_stage_has_the_value_and_pins_are_obeyed(pipeline: Path, capsys: pytest.CaptureFixture[str]):
    pinned, *free = parameters(pipeline)
    found = json.loads(asked(capsys, str(pipeline), pinned, "--json"))
    assert found["decided"][0]["stage"] == 0
    assert found["alternatives"] == []
    assert "there is no alternative" in found["remarks"][0]
    found = json.loads(asked(capsys, str(pipeline), free[-1], "--json"))
    assert found["decided"][0]["stage"] == 1
    assert found["alternatives"]
    assert "(stage 1)" in asked(capsys, str(pipeline), free[-1])


def test_unknown_names_and_folders_are_one_message(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    name = parameter(plan)
    assert main(["explain", str(plan), name.replace("weight", "wieght")]) == 1
    assert f"did you mean {name}" in capsys.readouterr().err
    assert main(["explain", str(tmp_path)]) == 1
    assert "plan.json is not a plan" in capsys.readouterr().err
    report = json.loads((plan / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps(report))
    assert main(["explain", str(tmp_path), name]) == 1
    assert "global.mlir is missing" in capsys.readouterr().err
    (tmp_path / "plan.json").write_text(json.dumps({**report, "chosen_candidate": None}))
    assert main(["explain", str(tmp_path)]) == 1
    assert "not made by search-plan" in capsys.readouterr().err
    del report["chosen_candidate"]
    (tmp_path / "plan.json").write_text(json.dumps(report))
    assert main(["explain", str(tmp_path)]) == 1
    assert "older version" in capsys.readouterr().err


def test_terms_in_the_names_of_plans_are_explained(plan: Path, capsys: pytest.CaptureFixture[str]):
    report = json.loads((plan / "plan.json").read_text())
    assert report["legend"] == legend([each["name"] for each in report["candidates"]])
    for arguments in ((str(plan),), (str(plan), parameter(plan))):
        shown = asked(capsys, *arguments)
        for term, meaning in legend([report["chosen"]]).items():
            assert re.search(rf"^{term} +{re.escape(meaning)} *$", shown, re.MULTILINE)
        assert "fused batch-norm" not in shown


def test_a_plan_of_an_older_version_is_explained(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Older versions named searches by their weights, and gave the same strategy only as a reason."""
    shutil.copytree(plan, tmp_path, dirs_exist_ok=True)
    report = json.loads((plan / "plan.json").read_text())
    old = {each["name"]: f"search({number}, 1, apart) on 4" for number, each in enumerate(report["candidates"])}
    for each in report["candidates"]:
        each["name"] = old[each["name"]]
        if (same := each.pop("same_as", None)) is not None:
            each["why"] = f"the same as {old[same]}"
    report["chosen"] = old[report["chosen"]]
    report["chosen_candidate"]["choice"]["name"] = "search(0, 1, apart)"
    del report["legend"]
    (tmp_path / "plan.json").write_text(json.dumps(report))
    shown = asked(capsys, str(tmp_path))
    assert report["chosen"] in shown
    assert "terms in the names" not in shown
    assert "cannot be: the same as" not in shown
    assert report["chosen"] in asked(capsys, str(tmp_path), parameter(plan))
    new = tmp_path / "again"
    arguments = ["plan", "mlp-tiny", "--cluster", "local-4", "--out", str(new)]
    assert main([*arguments, "--candidate", str(tmp_path / "plan.json")]) == 0
    assert old[json.loads((new / "plan.json").read_text())["chosen"]] == report["chosen"]


def candidate(name: str, strategy: str, mode: str = "whole", why: str = "slower", **known: float) -> dict[str, object]:
    family = {"mode": mode, "strategy": strategy, "mesh": OWN, "balanced": False}
    return {"name": name, "why": why, "family": family, **known}


def test_why_not_of_each_kind():
    listed = [
        candidate("dp on 4", "dp", why="", step=1.0, exposed=0.5, peak_bytes=8, memory_bytes=9.0),
        candidate("zero1 on 4", "zero1", why="does not fit", step=0.5, exposed=0.1, peak_bytes=12, memory_bytes=9.0),
        candidate("zero3 on 4", "zero3", why="the same as dp on 4"),
        candidate("tp on 4", "tp", why="by an estimate", step=1.5),
        candidate("search on 4 in 2 parts", "search", "accumulate", why="a batch-norm needs the whole batch"),
    ]
    report: Any = {"candidates": listed, "chosen": "dp on 4", "chosen_candidate": {"own_mesh": OWN}}
    found = {each.kind: each.why for each in why_not(report)}
    assert found["data parallelism"] == "it is the plan"
    assert found["ZeRO 1"] == "does not fit: needs 3 B more memory"
    assert found["ZeRO 3"] == "is the same as the plan"
    assert found["tensor parallelism"] == "at least slower by 500 ms (50.0%), by an estimate"
    assert found["accumulation"] == "infeasible: a batch-norm needs the whole batch"
    assert found["duplex"] == "not tried"


def test_a_candidate_reads_back():
    given: Any = candidate("tp on 4", "dp+tp", step=1.5)
    assert Tried.from_dict(given).as_dict() == given


def parameters(folder: Path) -> list[str]:
    """Return the names of the matrices of a plan's step, in its order."""
    text = (folder / "global.mlir").read_text()
    words = text.split('train.param = "')[1:]
    return [name for word in words if (name := word.partition('"')[0]).endswith("weight")]


def parameter(folder: Path) -> str:
    return parameters(folder)[0]


def operation(folder: Path) -> str:
    """Return the name of the result of the first matrix product."""
    line = next(line for line in (folder / "global.mlir").read_text().splitlines() if "mm " in line and " = " in line)
    return line.partition(" = ")[0].strip().lstrip("%")
