"""The library logs and prints nothing; only command lines print."""

from __future__ import annotations

import ast
import logging
from pathlib import Path
from typing import Any

import pytest

from shardwright.api.plan_log import log_plan, splits_nothing
from shardwright.ir.mesh import Mesh
from shardwright.runtime.plan import Plan, Value

ROOT = Path(__file__).parents[3]
COMMANDS = {"runtime/launch.py", "runtime/ending.py"}
"""Files outside `tools` that print: programs, which are command lines too, and the message that ends a job."""


def plan(sharding: str, ranks: int = 2) -> Plan:
    return Plan("mlp", Mesh.of(gpu=ranks), (Value("param", "w", (4, 4), sharding=sharding),), ())


def test_only_command_lines_print():
    folders = ("api", "dialects", "ir", "lowering", "models", "passes", "runtime")
    files = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    printing = {
        path.relative_to(ROOT).as_posix()
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert printing == COMMANDS


@pytest.mark.parametrize(
    ("plans", "nothing"),
    [
        ([plan("[{}, {}]")], True),
        ([plan('[{"gpu"}, {}]')], False),
        ([plan("[{}, {}]", ranks=1)], False),
        ([plan("[{}, {}]", ranks=1), Plan("mlp", Mesh.of(gpu=1), (), (), ranks=(1,))], False),
        ([Plan("mlp", Mesh.of(gpu=2), (), (), groups=(("gpu",),))], False),
    ],
)
def test_a_plan_splits_nothing_where_every_rank_does_the_same(plans: list[Plan], nothing: bool):
    assert splits_nothing(plans) is nothing


def test_measurements_are_logged(caplog: pytest.LogCaptureFixture):
    report: Any = {
        "name": "mlp",
        "ranks": 2,
        "mesh": {"gpu": 2},
        "chosen": "dp on 2",
        "predicted_step_s": 2e-3,
        "predicted_exposed_communication_s": 5e-4,
        "peak_bytes": [2048, 4096],
        "candidates": [],
        "pass_seconds": {},
        "measured": [{"plan": "dp on 2", "measured_step_s": 3e-3, "predicted_step_s": 2e-3}],
    }
    with caplog.at_level(logging.INFO, "shardwright"):
        log_plan(report, [plan('[{"gpu"}, {}]')], 1.5)
    assert caplog.messages == [
        "mlp: planned in 1.5 s for 2 ranks (gpu=2): dp on 2",
        "mlp: predicted step 2 ms, of which 500 us waiting for communication; peak memory of a rank 4 KiB",
        "mlp: measured dp on 2: 3 ms, predicted 2 ms",
        "mlp: terms: dp = data parallel: each device has a part of the batch and all parameters (DDP)",
    ]
