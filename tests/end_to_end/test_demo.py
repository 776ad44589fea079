"""The parts of the demo: the report, the reason for a wrong prediction, the bars and the picture."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from example_runs import EXAMPLES
from rich.progress import Progress
from split_cluster import split_cluster

from shardwright.api.compile import compile_step
from shardwright.ir.mesh import Mesh
from shardwright.models.registry import training_step


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module
    spec.loader.exec_module(module)
    return module


def test_the_demo_shows_a_plan_its_speed_and_its_losses(demo: ModuleType, capsys: pytest.CaptureFixture[str]):
    report = dict(compile_step(training_step("mlp-tiny"), split_cluster(Mesh.of(gpu=2))).report)
    chosen = str(report["chosen"])
    report["measured"] = [
        {"plan": chosen, "predicted_step_s": 1.0, "measured_step_s": 2.0},
        {"plan": "dp on 2", "predicted_step_s": 2.0, "measured_step_s": 3.0},
    ]
    plans = demo.timed_plans(report, 2.5)
    demo.show_plan(report)
    demo.show_speed(plans, chosen, 6.0)
    demo.show_losses([2.0, 1.0], [2.0, 1.0], 2)
    shown = capsys.readouterr().out
    assert f"{chosen}, chosen" in shown
    rows = {line.split("│")[1].strip(): line for line in shown.splitlines() if line.startswith("│")}
    assert "1.50x" in rows[f"{chosen}, chosen"]
    assert "3.00x" in rows[f"{chosen}, chosen"]
    assert "2.00x" in rows["dp on 2"]
    assert "largest relative difference of the two curves: 0.0e+00" in shown
    del report["measured"]
    assert demo.timed_plans(report, 2.5) == {chosen: (report["predicted_step_s"], 2.5)}


@pytest.mark.parametrize(
    ("predicted", "measured", "expected"),
    [
        (
            (1.0, 0.8),
            (1.5, 1.2),
            "50% longer than predicted, outside the predicted range. .*computing took longer.*400 ms",
        ),
        ((1.0, 0.8), (0.7, 0.6), "30% shorter than predicted, outside .*computing took less time .*200 ms"),
        (
            (1.0, 0.8),
            (1.1, 0.7),
            "10% longer than predicted, within .*waited longer for one another .4 share 2.: 200 ms",
        ),
        (
            (1.0, 0.5),
            (0.9, 0.6),
            "10% shorter than predicted, within .*waited less for one another .4 share 2.: 200 ms",
        ),
    ],
)
def test_the_reason_is_the_part_that_changed_most(
    demo: ModuleType, predicted: tuple[float, float], measured: tuple[float, float], expected: str
):
    text = demo.reason(demo.Parts(*predicted), demo.Parts(*measured), (0.85, 1.2), "4 share 2")
    assert re.search(expected, text), text


def test_lines_of_a_training_move_its_bar_and_other_lines_are_printed(demo: ModuleType):
    bars = Progress(disable=True)
    task = bars.add_task("4 processes", total=None, at="starts")
    assert demo.shown("DEBUG shardwright.plan: 7 candidates, best 1 ms; dp: 2 ms\n", bars, task)
    assert bars.tasks[0].fields["at"] == "plans: 7 tried"
    assert demo.shown("step    3 of 40  loss 2.5000  0.1 s\n", bars, task)
    assert (bars.tasks[0].completed, bars.tasks[0].total, bars.tasks[0].fields["at"]) == (3, 40, "loss 2.5000")
    assert not demo.shown("RuntimeError: it failed\n", bars, task)


def test_a_picture_is_saved_or_its_extra_is_named(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    plans, losses = {"a": demo.Timed(1.0, 2.0)}, {"4 processes": [2.0, 1.0], "one process": [2.0, 1.0]}
    demo.save_picture(tmp_path / "demo.png", plans, 3.0, losses)
    assert f"picture: {tmp_path / 'demo.png'}" in capsys.readouterr().out
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    demo.save_picture(tmp_path / "none.png", plans, 3.0, losses)
    assert "shardwright[plot]" in capsys.readouterr().out
    assert not (tmp_path / "none.png").exists()
