"""The library logs and prints nothing; only command lines print."""

from __future__ import annotations

import ast
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from split_cluster import split_cluster
from torch import nn

import shardwright as sw
from shardwright.api.plan_log import PhaseLog, log_plan, splits_nothing
from shardwright.ir.mesh import Mesh
from shardwright.passes.planning import notes
from shardwright.passes.planning.notes import Allowance
from shardwright.runtime.plan import Plan, Value

ROOT = Path(__file__).parents[3]
COMMANDS = {"runtime/launch.py", "runtime/ending.py"}
"""Files outside `tools` that print: programs, which are command lines too, and the message that ends a job."""


REPORT: dict[str, Any] = {
    "name": "mlp",
    "ranks": 2,
    "mesh": {"gpu": 2},
    "chosen": "dp on 2",
    "predicted_step_s": 2e-3,
    "predicted_exposed_communication_s": 5e-4,
    "peak_bytes": [2048, 4096],
    "candidates": [],
    "pass_seconds": {},
}


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
    measured = [{"plan": "dp on 2", "measured_step_s": 3e-3, "predicted_step_s": 2e-3}]
    report: Any = {**REPORT, "measured": measured}
    with caplog.at_level(logging.INFO, "shardwright"):
        log_plan(report, [plan('[{"gpu"}, {}]')], 1.5)
    assert caplog.messages == [
        "mlp: planned in 1.5 s for 2 ranks (gpu=2): dp on 2",
        "mlp: predicted step 2 ms, of which 500 us waiting for communication; peak memory of a rank 4 KiB",
        "mlp: measured dp on 2: 3 ms, predicted 2 ms",
        "mlp: terms: dp = data parallel: each device has a part of the batch and all parameters (DDP)",
    ]


def data_parallel(step: float, ranks: int = 2) -> dict[str, Any]:
    family = {"mode": "whole", "strategy": "dp", "mesh": {"gpu": ranks}, "balanced": False}
    return {"name": f"dp on {ranks}", "why": "by an estimate", "step": step, "family": family}


def test_a_plan_that_splits_nothing_says_what_data_parallelism_takes(caplog: pytest.LogCaptureFixture):
    report: Any = {
        **REPORT,
        "chosen": "searched on 2",
        "candidates": [data_parallel(3e-3), data_parallel(2e-3, ranks=1)],
    }
    log_plan(report, [plan("[{}, {}]")], 1.5)
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    times = "(one device takes 2 ms, data parallelism on all at least 3 ms, slower by 1 ms (50.0%))"
    assert f"each of 2 ranks computes the full step {times}" in warning
    caplog.clear()
    report["idle"] = [1]
    log_plan(report, [plan('[{"gpu"}, {}]')], 1.5)
    assert f"the step is faster without them {times}" in caplog.text


def test_phases_are_logged_and_the_step_describes_itself(caplog: pytest.LogCaptureFixture):
    batch = torch.randn(8, 4), torch.randint(4, (8,))
    optimizer = partial(torch.optim.SGD, lr=0.1)
    with caplog.at_level(logging.INFO, "shardwright"):
        step = sw.parallelize(
            nn.Linear(4, 4), nn.functional.cross_entropy, optimizer, batch, split_cluster(Mesh.of(gpu=1))
        )
        step(batch)
        step(batch)
    told = [message.partition(" in ")[0] for message in caplog.messages]
    order = ["Linear: captured the step", "Linear: compiled 1 program", "Linear: planned", "Linear: first step"]
    assert [message for message in told if message in order] == order
    (searched,) = (message for message in caplog.messages if message.startswith("searched "))
    assert " candidates in " in searched
    assert f"best {step.plan['chosen']}, " in searched
    assert "the lower bound is" in searched

    figures = f"plan='{step.plan['chosen']}', mesh={{'gpu': 1}}, ranks=1, predicted_step='"
    assert repr(step).startswith(f"DistributedStep('Linear', {figures}")
    text = step.explain()
    for part in ("Linear on split", step.plan["chosen"] or "", "no step is shorter than", "it is the plan", "ZeRO 3"):
        assert part in text


def test_the_log_is_shown_unless_logging_is_configured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    log, root = logging.getLogger("shardwright"), logging.getLogger()
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "level", logging.NOTSET)
    with monkeypatch.context() as patch:
        patch.setattr(root, "handlers", [])
        PhaseLog("mlp").ended("captured the step")
        log.warning("something %s", "odd")
        PhaseLog("again")
        assert len(log.handlers) == 1
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith("shardwright: mlp: captured the step in ")
    assert shown[1:] == ["something odd"]
    PhaseLog("mlp").ended("captured the step")
    assert capsys.readouterr().err == ""
    log.setLevel(logging.NOTSET)


def test_a_level_that_the_user_sets_silences_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    log, root = logging.getLogger("shardwright"), logging.getLogger()
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(root, "handlers", [])
    before = log.level
    log.setLevel(logging.WARNING)
    PhaseLog("mlp").ended("captured the step")
    assert capsys.readouterr().err == ""
    log.setLevel(before)


def test_a_search_reports_its_progress_once_in_a_while(monkeypatch: pytest.MonkeyPatch):
    now = iter([1.0, 6.0, 7.0, 11.5])
    monkeypatch.setattr(notes, "perf_counter", lambda: next(now))
    allowance = Allowance(1.0, began=0.0, reported=0.0)
    levels = [allowance.next_report_level() for _ in range(4)]
    assert levels == [logging.DEBUG, logging.INFO, logging.DEBUG, logging.INFO]
