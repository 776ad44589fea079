"""
Branches for CUDA outside of programs, run with stand-ins for `torch.cuda`. `test_simulated_cuda.py` tests programs;
docs/gpus.md lists both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
import torch
from torch import nn

import shardwright as sw
from shardwright.api import finalists, parallelize
from shardwright.api.calibration import op_families
from shardwright.api.plan_log import log_first_step
from shardwright.api.variants import Variants
from shardwright.lowering.capture.capture import CaptureError, capture_step
from shardwright.runtime import faults, rank_devices
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.non_finite import FiniteLosses, NonFiniteError
from shardwright.runtime.plan import PlanError
from shardwright.runtime.profile.clock import Clock
from shardwright.runtime.profile.devices import device_name, memory_bytes
from shardwright.runtime.profile.interference import InterferenceMeter

ROOT = Path(__file__).resolve().parents[3]
CUDA = torch.device("cuda", 0)


class OnCuda(torch.Tensor):
    """A tensor that claims to be on a GPU."""

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return CUDA


class Waits:
    """A counter of waits for the device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        stream = SimpleNamespace(synchronize=self.wait, record_event=lambda: SimpleNamespace(query=lambda: False))
        monkeypatch.setattr(torch.cuda, "synchronize", self.wait)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: stream)

    def wait(self, *_: object) -> None:
        self.count += 1


def loss(value: float) -> torch.Tensor:
    return torch.tensor(value).as_subclass(OnCuda)


def test_a_loss_on_a_gpu_is_checked_one_step_later():
    finite = FiniteLosses(cast(Any, SimpleNamespace(plans=())))
    finite._source = lambda batch: "it was given numbers that are not finite"
    finite.see(1, loss(float("nan")), (torch.ones(2),))
    with pytest.raises(NonFiniteError, match="the loss of step 1 is nan"):
        finite.see(2, loss(1.0), (torch.ones(2),))


def test_a_step_on_a_gpu_reports_activity_of_the_device(monkeypatch: pytest.MonkeyPatch):
    model = nn.Linear(4, 3)
    batch = torch.randn(8, 4), torch.randint(3, (8,))
    step = sw.parallelize(model, nn.functional.cross_entropy, partial(torch.optim.SGD, lr=0.1), batch)
    run = step._executor.step
    monkeypatch.setattr(step._executor, "step", lambda *args: run(*args).as_subclass(OnCuda))
    monkeypatch.setattr(faults.ACTIVITY, "on_device", None)
    Waits(monkeypatch)
    step(batch)
    assert faults.ACTIVITY.on_device is not None
    assert not faults.ACTIVITY.on_device.query()


def test_clocks_wait_for_the_device(monkeypatch: pytest.MonkeyPatch):
    waits = Waits(monkeypatch)
    clock = object.__new__(Clock)
    clock.device = CUDA
    clock._settle()
    assert waits.count == 1
    executor = cast(Any, SimpleNamespace(step=lambda _: None))
    assert finalists._timed(executor, {}, CUDA, 2) > 0
    assert waits.count == 2
    log_first_step(cast(Any, {"name": "step", "predicted_step_s": 1.0}), loss(1.0), 0.0)
    assert waits.count == 3


def test_products_are_timed_one_after_the_other(monkeypatch: pytest.MonkeyPatch):
    waits = Waits(monkeypatch)
    meter = object.__new__(InterferenceMeter)
    meter._x, meter._comm = torch.ones(2, 2), cast(Communicator, SimpleNamespace(device=CUDA))
    meter._compute()
    assert waits.count == 1


def test_a_gpu_has_a_name_and_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100  80GB")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=85 << 30))
    assert device_name(CUDA) == "nvidia-h100-80gb"
    assert memory_bytes(CUDA) == 85 << 30


def test_random_state_of_the_gpu_is_kept(monkeypatch: pytest.MonkeyPatch):
    asked: list[object] = []
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices, enabled: asked.append(devices))
    parallelize._random_numbers_kept(CUDA)
    parallelize._random_numbers_kept(torch.device("cpu"))
    assert asked == [[CUDA], []]


def test_random_state_of_the_gpu_is_kept_while_a_shape_is_planned(monkeypatch: pytest.MonkeyPatch):
    kept: list[list[torch.device]] = []

    @contextmanager
    def fork(devices: list[torch.device]) -> Generator[None]:
        kept.append(devices)
        yield

    def refused(planner: object) -> NoReturn:
        raise PlanError("no plan")

    monkeypatch.setattr(torch.random, "fork_rng", fork)
    made = object.__new__(Variants)
    made.planner, made.opened = cast(Any, object()), nullcontext
    made.connections = cast(Any, SimpleNamespace(device=CUDA))
    with pytest.raises(PlanError, match="no plan"):
        made._made("a shape", refused)
    assert kept == [[CUDA]]


def test_a_single_process_has_the_current_gpu(monkeypatch: pytest.MonkeyPatch):
    assert rank_devices.single_device() == rank_devices.CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert rank_devices.single_device() == torch.device("cuda", 3)
    assert (rank_devices.usual_backend(CUDA), rank_devices.usual_backend(rank_devices.CPU)) == ("nccl", "gloo")


def test_errors_of_nccl_are_recognised_as_lost_peers():
    lost = "NCCL error: remote process exited or there was a network error; connection closed by peer"
    assert faults.is_lost_peer(RuntimeError(lost))
    assert not faults.is_lost_peer(RuntimeError("NCCL error: invalid usage"))


def test_autocast_to_cuda_is_refused_in_a_model(monkeypatch: pytest.MonkeyPatch):
    model, batch = nn.Linear(4, 3), (torch.randn(8, 4), torch.randint(3, (8,)))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind="cuda": kind == "cuda")
    with pytest.raises(CaptureError, match="CUDA autocast is on"):
        capture_step(model, nn.functional.cross_entropy, partial(torch.optim.SGD, lr=0.1), batch)


def test_gpus_are_measured_in_bfloat16_too():
    assert op_families.dtypes_of("cuda") == ("float32", "bfloat16")
    assert op_families.dtypes_of("cpu") == ("float32",)


FUNCTION = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \| .* \| (.+) \|$", re.MULTILINE)
CASE = re.compile(r"`(\w+\.py)(?:: (\w+))?`")


def functions_with_branches(file: Path) -> set[str]:
    """Return the functions and constants of a file that name CUDA or NCCL."""
    found: set[str] = set()

    def visit(node: ast.AST, inside: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            is_scope = isinstance(child, ast.FunctionDef | ast.ClassDef)
            within = (*inside, child.name) if is_scope else inside
            if isinstance(child, ast.Constant) and child.value in ("cuda", "nccl"):
                found.add(".".join(inside) or "module")
            if isinstance(child, ast.Attribute) and ast.unparse(child) == "torch.cuda":
                found.add(".".join(inside) or "module")
            visit(child, within)

    visit(ast.parse(file.read_text(encoding="utf-8")), ())
    return found


@cache
def rows() -> dict[tuple[str, str], str]:
    """Return the rows of the table in docs/gpus.md, with the tests that execute them."""
    text = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    return {(file, function): executed for file, function, executed in FUNCTION.findall(text)}


def test_the_table_lists_all_functions_with_cuda_branches():
    files = [file for folder in ("api", "lowering", "runtime", "tools") for file in (ROOT / folder).rglob("*.py")]
    found = {(str(file.relative_to(ROOT)), name) for file in files for name in functions_with_branches(file)}
    assert set(rows()) == found


@pytest.mark.parametrize("row", rows())
def test_tests_that_execute_a_branch_exist(row: tuple[str, str]):
    cases = CASE.findall(rows()[row])
    assert cases
    for file, case in cases:
        texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob(file)]
        assert any(f"def {case or 'test_'}" in text for text in texts)
