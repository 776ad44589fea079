"""The demo prints the report of a plan; `make demo` itself trains for two minutes."""

from __future__ import annotations

import importlib.util

import pytest
from example_runs import EXAMPLES
from split_cluster import split_cluster

from shardwright.api.compile import compile_step
from shardwright.ir.mesh import Mesh
from shardwright.models.registry import training_step


def test_the_demo_shows_a_plan_and_its_losses(capsys: pytest.CaptureFixture[str]):
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    report = dict(compile_step(training_step("mlp-tiny"), split_cluster(Mesh.of(gpu=2))).report)
    demo.show_plan(report)
    demo.show_losses([2.0, 1.0], [2.0, 1.0], 2)
    shown = capsys.readouterr().out
    assert str(report["chosen"]) in shown
    assert "largest relative difference of the two curves: 0.0e+00" in shown
