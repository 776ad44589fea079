"""`shardwright replan`: the files of a plan must fit together, and an earlier plan is found or ignored."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright.api.compile import CompiledStep, PlanOptions
from shardwright.api.earlier_plan import EarlierPlan
from shardwright.api.finalists import compile_finalists
from shardwright.api.plan_record import PlanRecord
from shardwright.api.steps import find_step
from shardwright.ir.cluster_file import parse_cluster, shipped_clusters
from shardwright.tools.cli import main

ROAD = Path(shardwright.__file__).parent / "examples" / "road" / "step.mlir"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a searched plan of four ranks."""
    folder = tmp_path_factory.mktemp("plans") / "plan"
    assert main(["plan", "mlp-tiny", "--cluster", "local-4", "--out", str(folder)]) == 0
    return folder


def replanned(plan: Path, out: Path) -> tuple[str, dict[str, Any]]:
    """Replan; return the new step and the report about its state."""
    assert main(["replan", str(plan), "--cluster", "uneven-4", "--out", str(out)]) == 0
    return (out / "step.mlir").read_text(), json.loads((out / "plan.json").read_text())["replan"]


def test_a_missing_or_outdated_record_is_derived_from_the_plan(plan: Path, tmp_path: Path):
    others = {name: shutil.copytree(plan, tmp_path / name) for name in ("none", "changed")}
    (others["none"] / "replan.json").unlink()
    with (others["changed"] / "step.mlir").open("a") as file:
        file.write("// by hand\n")
    found = replanned(plan, tmp_path / "new")
    assert found[1]["state_bytes"] > 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in plan.iterdir())
    for name, folder in others.items():
        assert replanned(folder, tmp_path / f"new-{name}") == found


def test_files_of_two_plans_are_refused(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = shutil.copytree(plan, tmp_path / "plan")
    words = ["replan", str(folder), "--cluster", "uneven-4", "--out", str(tmp_path / "new")]
    report = json.loads((plan / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**report, "ranks": 8}))
    assert main(words) == 1
    assert "belong to different plans: plan.json has 8 ranks, but step.mlir has 4" in capsys.readouterr().err
    shutil.copy(plan / "plan.json", folder)
    shutil.copy(ROAD, folder / "global.mlir")
    assert main(words) == 1
    told = capsys.readouterr().err
    assert "belong to different plans: the old plan belongs to another step: it has " in told
    assert "hint: plan again: " in told
    assert not (tmp_path / "new").exists()


def test_planning_begins_from_the_newest_readable_record(plan: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    assert EarlierPlan.find(tmp_path / "missing") is None
    found = EarlierPlan.find(plan)
    assert found is not None
    assert found.record.cluster.mesh.device_count == 4
    for number in (1, 2, 3):
        (tmp_path / f"step-{number:08d}").mkdir()
    (tmp_path / "step-00000001" / "replan.json").write_text(found.record.text())
    (tmp_path / "step-00000002" / "replan.json").write_text(found.record.text()[:-20])
    with caplog.at_level(logging.WARNING, "shardwright"):
        kept = EarlierPlan.find(tmp_path)
    assert kept is not None
    assert kept.folder.name == "step-00000001"
    assert kept.record == found.record
    (warning,) = caplog.messages
    assert "step-00000002/replan.json cannot be read" in warning


@pytest.mark.parametrize("changed", [{"version": 9}, {"cluster": "mesh = 3"}, {"candidate": {}}, {"state": [{}]}])
def test_a_changed_record_is_ignored(changed: dict[str, Any], plan: Path, tmp_path: Path):
    record = json.loads((plan / "replan.json").read_text())
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "replan.json").write_text(json.dumps({**record, "of": "", **changed}))
    assert EarlierPlan.find(tmp_path) is None


def test_the_same_devices_get_the_same_plan_and_others_a_similar_one(plan: Path, caplog: pytest.LogCaptureFixture):
    found, step = EarlierPlan.find(plan), find_step("mlp-tiny")
    assert found is not None
    asked: list[PlanOptions] = []

    def made(name: str, found: EarlierPlan = found, **options: Any) -> CompiledStep:
        cluster = parse_cluster(shipped_clusters()[name])

        def compiled(each: PlanOptions) -> list[CompiledStep]:
            asked.append(each)
            return compile_finalists(step, cluster, each, 1, name="mlp-tiny", step_spec="mlp-tiny")

        (planned,) = found.made(compiled, PlanOptions(**options), cluster)
        return planned

    same, other, fixed = made("local-4"), made("uneven-4"), made("local-4", micro_batches=2, stages=1)
    assert [each.adapt for each in asked] == [False, True, False, True]
    assert same.program == (plan / "program.py").read_text()
    first, second = other.report["chosen_candidate"], fixed.report["chosen_candidate"]
    assert same.report.get("replan", {})["moved_bytes_bound"] == 0
    assert first is not None
    assert second is not None
    assert found.record.candidate is not None
    assert first["choice"]["pins"] == found.record.candidate["choice"]["pins"]
    assert first["choice"]["weights"] == found.record.candidate["choice"]["weights"]
    assert second["parts"] == 2
    assert PlanRecord.of(other.module, other.report).adapted
    assert "another step" not in caplog.text
    strange = made("local-4", replace(found, record=replace(found.record, state=found.record.state[1:])))
    assert "replan" not in strange.report
    assert "the old plan belongs to another step: it has no 'param " in caplog.text
