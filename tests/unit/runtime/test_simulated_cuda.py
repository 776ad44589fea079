"""
Programs of every kind on simulated GPUs: no race, no memory let go too early, one order on every communicator, no
deadlock. And the check itself: whatever the runtime tells streams, leaving it out is noticed in one of them.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from simulated_cuda import device
from simulated_cuda.check import Report, check_program
from split_cluster import launching_cluster, split_cluster

from shardwright import runtime
from shardwright.api.compile import PlanOptions, compile_step
from shardwright.ir.mesh import parse_mesh
from shardwright.lowering.codegen.load_program import load_text
from shardwright.models.gpt2 import GPT2Config, gpt2_step
from shardwright.runtime import Stage
from shardwright.runtime import stages as stages_module

CONFIG = GPT2Config(layers=2, width=32, heads=4, vocabulary=52, positions=16)
THOROUGH = pytest.mark.thorough
RUNTIME = Path(str(runtime.__file__)).parent
FRONT = "decompose-mean,decompose-cross-entropy,canonicalize,cse,dce,"
SHARDED = "insert-resharding,select-collectives,"
END = "check-order,reuse-buffers,insert-frees"
DUPLEX = f"{FRONT}search-strategy{{algorithm=eliminate}},split-batch{{parts=2}},{SHARDED}duplex,overlap,{END}"
PARTS = f"{FRONT}search-strategy{{algorithm=eliminate}},split-batch{{parts=2}},{SHARDED}accumulate,overlap,{END}"


def stages(count: int, schedule: str) -> str:
    """A pipeline of so many stages, with two parts of the batch for each."""
    return (
        f"{FRONT}partition-stages{{stages={count}}},search-strategy,split-batch{{parts={count}}},{SHARDED}overlap,"
        f"schedule-pipeline{{schedule={schedule}}},plan-transfers,{END}"
    )


PLANS = {
    "dp": ("dp=2", PlanOptions(pins="dp")),
    "zero3": ("dp=2", PlanOptions(pins="zero3")),
    "tp": ("tp=2", PlanOptions(pins="tp")),
    "searched": ("node=2,gpu=2", PlanOptions("eliminate")),
    "uneven": ("dp=2", PlanOptions("eliminate", ratios="0.75,0.25")),
    "micro-batches": ("dp=2", PlanOptions(pipeline=PARTS)),
    "duplex": ("tp=2", PlanOptions(pipeline=DUPLEX)),
    "two stages, 1f1b": ("dp=4", PlanOptions(pipeline=stages(2, "1f1b"))),
    "two stages, gpipe": ("dp=2", PlanOptions(pipeline=stages(2, "gpipe"))),
    "four stages": ("dp=4", PlanOptions(pipeline=stages(4, "gpipe"))),
}


@pytest.fixture(autouse=True, scope="module")
def _guard() -> None:
    """Without it no fake tensor can be indexed."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++, to build a guard of CUDA devices for a torch without CUDA")
    device.add_device_guard()


@cache
def program(name: str) -> Sequence[Stage]:
    """The stages of a plan."""
    mesh, options = PLANS[name]
    cluster = (launching_cluster if name == "zero3" else split_cluster)(parse_mesh(mesh))
    config = replace(CONFIG, layers=4 if name == "four stages" else 2)
    made = compile_step(gpt2_step(config, batch=8, length=8), cluster, options)
    return tuple(Stage(*each) for each in load_text(made.program, "<program>"))


@pytest.mark.parametrize("name", [name for name in PLANS if name != "two stages, 1f1b"])
def test_a_program_is_right_on_gpus(name: str):
    report = check_program(program(name))
    assert report.fatal == []
    assert report.launches > 0
    assert sum(report.kernels.values()) > 50


def test_stages_need_more_than_one_hardware_queue(monkeypatch: pytest.MonkeyPatch):
    # What is received early holds up, in one queue, what the other stage waits for.
    monkeypatch.setattr(stages_module, "_QUEUES", "ANOTHER_NAME")
    (found,) = check_program(program("four stages")).found["queues"]
    assert found.startswith("with 1 hardware queues: rank 0: ")
    monkeypatch.undo()
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    assert "PlanError: CUDA_DEVICE_MAX_CONNECTIONS=1 gives" in check_program(program("four stages")).fatal[0]
    assert check_program(program("tp")).fatal == []


WATCHED: dict[str, tuple[Any, str]] = {
    "wait_event": (device.Stream, "wait_event"),
    "wait_stream": (device.Stream, "wait_stream"),
    "record": (device.Event, "record"),
}
"""What streams are told."""


REDUNDANT = {
    "zero3": {"communicator.py: tensor.record_stream(stream)"},
    "two stages, gpipe": {"transfers.py: value.record_stream(stream)"},
    "two stages, 1f1b": set[str](),
}
"""
What a program does not need: `insert-frees` keeps operands of a collective until its wait, and a whole value is sent as
it is, which NCCL itself records; `1f1b`, on two ranks a stage, sends slices that are copied on the stream first.
"""


def caller() -> str:
    """Which line of the runtime calls a stand-in."""
    frames = [each for each in traceback.extract_stack() if Path(each.filename).parent == RUNTIME]
    return f"{Path(frames[-1].filename).name}: {frames[-1].line}"


def checked(name: str, monkeypatch: pytest.MonkeyPatch, left_out: str) -> tuple[Report, set[str]]:
    """The report on a program whose runtime leaves out what one line tells streams; and all such lines that it has."""
    seen: set[str] = set()

    def watching(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            seen.add(caller())
            return None if caller() == left_out else call(*args)

        return run

    with monkeypatch.context() as patched:
        for home, method in WATCHED.values():
            patched.setattr(home, method, watching(getattr(home, method)))
        patched.setattr(device, "record_stream", watching(device.record_stream))
        return check_program(program(name)), seen


@pytest.mark.parametrize("name", ["zero3", "two stages, gpipe", pytest.param("two stages, 1f1b", marks=THOROUGH)])
def test_leaving_out_what_a_stream_is_told_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch):
    report, lines = checked(name, monkeypatch, "")
    assert report.fatal == []
    assert len(lines) >= 4
    missed = {line for line in lines if not checked(name, monkeypatch, line)[0].fatal}
    assert missed == REDUNDANT[name]
