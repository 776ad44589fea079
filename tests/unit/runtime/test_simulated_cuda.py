"""
Programs of every kind on simulated GPUs are free of races, early frees, deadlocks and waits of the CPU, and have one
order on every communicator. The check detects faults that are planted in the runtime.
"""

from __future__ import annotations

import shutil
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from launches import names_of
from simulated_cuda import device
from simulated_cuda.check import check_program
from simulated_cuda.device import simulated_rank
from simulated_cuda.mutate import mutated
from simulated_cuda.trace import Trace
from simulated_plans import MORE_PLANS, PLANS, program, stages_of
from split_cluster import split_cluster
from torch import nn

from shardwright.api.compile import PlanOptions, compile_step
from shardwright.api.training_step import TrainingStep
from shardwright.ir.mesh import Mesh
from shardwright.lowering.codegen.load_program import load_text
from shardwright.runtime import (
    Executor,
    Stage,
    collectives,
    executor,
    fused_attention,
    grouped_products,
    groups,
    hierarchical,
    rows,
    transfers,
)
from shardwright.runtime import stages as stages_module
from shardwright.runtime.communicator import Communicator, UntilEvent
from shardwright.runtime.plan import Result, Value
from shardwright.runtime.requests import Pending
from shardwright.runtime.rows import RowLayout
from shardwright.runtime.stages import connect
from shardwright.runtime.transfers import Channels, Lines

SGD = partial(torch.optim.SGD, lr=0.1)


@pytest.fixture(autouse=True, scope="module")
def _guard() -> None:
    """Add the device guard that indexing of fake tensors needs."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++, to build a guard of CUDA devices for a torch without CUDA")
    device.add_device_guard()


USUALLY = {"bf16", "hierarchical", "uneven", "experts", "duplex", "four stages, 1f1b"}
"""Plans that run without `--thorough`: other tests here run the remaining ones, or these plans have the same ops."""


@pytest.mark.parametrize("name", names_of(PLANS, lambda name: name in USUALLY))
def test_a_program_is_right_on_gpus(name: str):
    report = check_program(program(name))
    assert report.fatal == []
    assert "sync" not in report.found
    assert report.launches > 0
    assert sum(report.kernels.values()) > 50
    assert report.depends == ()


def dropout_stages() -> list[Stage]:
    """Return a program that draws random numbers."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    batch = (torch.zeros(8, 8), torch.zeros(8, dtype=torch.int64))
    step = TrainingStep(model, nn.functional.cross_entropy, SGD, batch)
    made = compile_step(step, split_cluster(Mesh.of(dp=2)), PlanOptions("fixed", "dp"))
    return [Stage(*each) for each in load_text(made.program, "<program>")]


def test_random_numbers_do_not_depend_on_host_values(monkeypatch: pytest.MonkeyPatch):
    # The first step creates the streams.
    stages = dropout_stages()
    report = check_program(stages, 3)
    assert report.fatal == []
    assert "sync" not in report.found
    assert report.depends == ()
    monkeypatch.setattr(Executor, "_seed_of_step", lambda self: torch.tensor(7 * self.steps))
    assert any("aten.mul" in each or "aten.add" in each for each in check_program(stages, 3).depends)


def test_a_learning_rate_on_the_host_is_detected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Executor, "_rate", lambda self, value, lr: torch.tensor(lr))
    assert all("_fused_adamw_" in each for each in check_program(program("dp")).depends)
    assert check_program(program("dp")).depends


def test_the_host_reads_the_learning_rate_of_float64_parameters_only():
    """CUDA kernels read a rate as float32, which has too few digits for float64."""
    batch = (torch.zeros(8, 4).double(), torch.zeros(8, 2).double())
    step = TrainingStep(nn.Linear(4, 2).double(), nn.functional.mse_loss, SGD, batch)
    made = compile_step(step, split_cluster(Mesh.of(dp=2)), PlanOptions("fixed", "dp"))
    report = check_program([Stage(*each) for each in load_text(made.program, "<program>")])
    assert report.fatal == []
    assert report.found["sync"]
    assert all("_with_rate" in each for each in report.found["sync"])


def test_parameters_and_states_keep_their_memory_between_steps():
    """All values except step counts: so the kernels of each step find parameters and states in the same memory."""
    moved = check_program(program("zero3")).moved
    assert len(moved) == 1
    assert moved[0].startswith("step_count")


def test_a_full_state_dict_is_in_the_memory_of_the_host():
    """A GPU holds only one full tensor at a time."""
    stages = program("zero3")
    ranks = stages[0].plan.ranks
    with simulated_rank(0, len(ranks), Trace(0, defaultdict(Counter[str]))):
        executor = Executor(stages, connect(stages, torch.device("cuda", 0)))
        executor.fill(lambda value, shape: torch.empty(shape, dtype=value.torch_dtype, device="cuda:0"))
        gathered: list[weakref.ref[torch.Tensor]] = []

        def gather(value: Value | Result) -> torch.Tensor:
            assert all(each() is None for each in gathered)
            full = Executor.gather(executor, value)
            assert full.device.type == "cuda"
            gathered.append(weakref.ref(full))
            return full

        executor.gather = gather
        state = executor.state_dict()
    assert len(gathered) > 10
    assert {each.device.type for each in state.values()} == {"cpu"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MORE_PLANS)
def test_every_model_is_right_on_gpus(name: str):
    assert check_program(stages_of(MORE_PLANS[name])).fatal == []


def test_stages_need_more_than_one_hardware_queue(monkeypatch: pytest.MonkeyPatch):
    # In one queue, an early receive blocks work that the other stage waits for.
    monkeypatch.setattr(stages_module, "_QUEUES", "ANOTHER_NAME")
    (found,) = check_program(program("two stages, gpipe")).found["queues"]
    assert found.startswith("with 1 hardware queues: rank 0: ")
    monkeypatch.undo()
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    assert "PlanError: CUDA_DEVICE_MAX_CONNECTIONS=1 gives" in check_program(program("two stages, gpipe")).fatal[0]
    assert check_program(program("tp")).fatal == []


def test_grouped_products_avoid_a_wait_only_in_bfloat16(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grouped_products, "_is_one_kernel", lambda *_: False)
    assert any("grouped_products.py" in each for each in check_program(program("experts")).found["sync"])


@dataclass(frozen=True)
class Fault:
    """
    A fault to plant in a function of the runtime.

    Args:
        plan: name of the plan that must reveal it.
        edits: replacements in the source of the function.
        noticed: expected kind of fault.
        steps: number of steps to run.
    """

    plan: str
    function: Callable[..., Any]
    edits: Mapping[str, str]
    noticed: str
    steps: int = 2


DONE = "done.record(stream)"
MAIN = "torch.cuda.current_stream(self.device)"
HERE = "torch.cuda.current_stream(self._device)"
FAULTS = {
    "results are used before they are here": Fault("dp", Pending.wait, {"work.wait()": "pass"}, "race"),
    "a message is packed while it is received": Fault(
        "zero3", Pending.wait, {"for work in self.works:": "for work in self.works[1:]:"}, "race"
    ),
    "a phase does not wait for the one before": Fault(
        "hierarchical", hierarchical._all_reduce, {"part = scattered.wait()": "part = scattered.finish()"}, "race"
    ),
    "a gather inside does not wait for the one across": Fault(
        "in phases", hierarchical._all_gather, {"= gathered.wait()": "= gathered.finish()"}, "race"
    ),
    "a reduction across does not wait for the one inside": Fault(
        "in phases", hierarchical._reduce_scatter, {"= scattered.wait()": "= scattered.finish()"}, "race"
    ),
    "what goes on is sent before it is here": Fault(
        "in phases", hierarchical._all_to_all, {"(here,) = sent.wait()": "(here,) = sent.finish()"}, "race"
    ),
    "a hierarchical collective does not wait for its operands": Fault(
        "hierarchical", Communicator._beside, {f"stream.wait_stream({MAIN})": "pass"}, "race"
    ),
    "a hierarchical collective is not waited for": Fault(
        "hierarchical", UntilEvent.wait, {f"{MAIN}.wait_event(self.event)": "pass"}, "race"
    ),
    "the end of a hierarchical collective is never marked": Fault(
        "hierarchical", Communicator._beside, {DONE: "pass"}, "race"
    ),
    "a stream is drawn for every collective": Fault(
        "hierarchical", Communicator._beside, {"if request.axes not in self._streams:": "if True:"}, "alias", 4
    ),
    "a message is too short": Fault(
        "zero3", RowLayout.to_gather, {"new_empty(self._group.size * length)": "new_empty(length)"}, "error"
    ),
    "one rank adds, the other takes the largest": Fault(
        "dp", collectives._all_reduce, {"[request.reduction]": "['max' if group.part else 'sum']"}, "order"
    ),
    "one rank leaves out a collective": Fault(
        "dp", collectives._launch, {"for args in operands]": "for args in operands[group.part :]]"}, "order"
    ),
    "a message is on the host": Fault("tp", collectives._to_reduce, {"tensor.clone(": "tensor.cpu().clone("}, "error"),
    "a group is connected by one of its ranks": Fault(
        "dp", groups.make_groups, {'if device.type == "cuda":': 'if device.type == "cuda" and me:'}, "order"
    ),
    "a batch is copied from pageable memory": Fault(
        "dp", executor.Executor._batch_part, {"part.pin_memory()": "part"}, "sync"
    ),
    "a batch is on the host": Fault(
        "dp", executor.Executor._batch_part, {"to(self.comm.device, value": "to('cpu', value"}, "error"
    ),
    "attention takes another kernel backward": Fault(
        "bf16", fused_attention._flash_backward, {"saved.grad_out": "saved.grad_out.cpu()"}, "error"
    ),
    "a value is sent before it is made": Fault(
        "two stages, gpipe", Channels.send, {f"stream.wait_stream({HERE})": "pass"}, "race"
    ),
    "memory is used again before it is sent": Fault(
        "two stages, 1f1b", Channels.send, {"value.record_stream(stream)": "pass"}, "freed"
    ),
    "a value is used before it arrives": Fault(
        "two stages, gpipe", Channels.receive, {"current.wait_event(done)": "pass"}, "race"
    ),
    "the arrival of a value is never marked": Fault("two stages, gpipe", Channels.receive, {DONE: "pass"}, "race"),
    "memory of a value that arrived is used again": Fault(
        "two stages, gpipe", Channels.receive, {"result.record_stream(current)": "pass"}, "freed"
    ),
    "a slice is handed on before it is here": Fault(
        "two stages, 1f1b", transfers._Hop.forward, {"work.wait()": "pass"}, "race"
    ),
    "a value arrives on the host": Fault(
        "two stages, gpipe", Channels._receive, {", device=self._device": ""}, "error"
    ),
    "a value arrives as something else": Fault(
        "two stages, gpipe", Channels._receive, {"getattr(torch, transfer.dtype)": "torch.float64"}, "error"
    ),
    "pairs of ranks share a communicator": Fault(
        "stages with skips", Channels._connect, {"self._lines.open(pairs)": "pass"}, "deadlock"
    ),
    "both directions share a communicator": Fault(
        "stages with skips", Lines.end, {"_of_pairs[pair][sender > receiver]": "_of_pairs[pair][0]"}, "deadlock"
    ),
    "a stream is drawn for every transfer": Fault(
        "four stages, 1f1b", Channels._stream, {"if stages not in self._streams:": "if True:"}, "alias"
    ),
}


TWINS = {
    *(name for name, fault in FAULTS.items() if fault.plan == "in phases"),
    "a message is packed while it is received",
    "the end of a hierarchical collective is never marked",
    "a stream is drawn for every collective",
    "a message is on the host",
    "the arrival of a value is never marked",
    "memory of a value that arrived is used again",
    "a slice is handed on before it is here",
    "a value arrives as something else",
    "pairs of ranks share a communicator",
}
"""Faults that run only with `--thorough`: another one always breaks the same mechanism and is noticed alike."""


@pytest.mark.parametrize("name", names_of(FAULTS, lambda name: name not in TWINS))
def test_a_planted_fault_of_the_runtime_is_detected(name: str):
    fault = FAULTS[name]
    with mutated(fault.function, fault.edits):
        assert fault.noticed in check_program(program(fault.plan), fault.steps).found


@pytest.mark.parametrize("name", ["zero3", pytest.param("searched", marks=pytest.mark.thorough)])
def test_large_tensors_of_a_bucket_are_one_launch(name: str, monkeypatch: pytest.MonkeyPatch):
    for module in (collectives, rows):
        monkeypatch.setattr(module, "ALONE_FROM_BYTES", 64)
    assert check_program(program(name)).fatal == []
    with mutated(collectives._launch, {"return [launched]": "return []"}):
        assert "race" in check_program(program(name)).found


def changing(stages: Sequence[Stage]) -> list[Stage]:
    """Return stages that begin each step by overwriting the values sent in the previous step."""
    sent: dict[int, list[torch.Tensor]] = {}

    def wrapped(stage: Stage) -> Stage:
        def step(comm: Any, *given: Any) -> Any:
            for value in sent.pop(comm.device.index, ()):
                value.zero_()

            class Sending:
                def __getattr__(self, name: str) -> Any:
                    return getattr(comm, name)

                def send(self, label: str, part: int, value: torch.Tensor) -> None:
                    sent.setdefault(comm.device.index, []).append(value)
                    comm.send(label, part, value)

            return stage.step(Sending(), *given)

        return stage._replace(step=step)

    return [wrapped(each) for each in stages]


def test_a_sent_value_may_be_overwritten_in_the_next_step():
    stages = program("two stages, gpipe")
    assert check_program(changing(stages)).fatal == []
    with mutated(Channels.finish, {f"{HERE}.wait_stream(stream)": "pass"}):
        assert "race" in check_program(changing(stages)).found
